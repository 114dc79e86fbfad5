"""A response's ids stay what was sampled: nothing decodes and encodes them again on the way to the update."""

import json
from itertools import product

import torch
from machine import small_machine
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from megatron_longstraw.config.schema import ObjectiveConfig, RewardConfig, RolloutConfig
from megatron_longstraw.data.order import RowOrder
from megatron_longstraw.data.prompts import PromptFile
from megatron_longstraw.data.recorded import RecordedFile, write_rollouts
from megatron_longstraw.data.template import Encoder
from megatron_longstraw.rewards.call import Reward
from megatron_longstraw.rollout.decode import StopRules
from megatron_longstraw.rollout.source import SampledRollouts
from megatron_longstraw.tracking.clock import PhaseClock
from megatron_longstraw.transaction import Machine, update


def pair_tokenizer() -> PreTrainedTokenizerFast:
    """Letters, and every pair of the first nine, into which encoding merges them."""
    pairs = list(product("abcdefghi", repeat=2))
    pieces = [*"abcdefghijklmnop", *("".join(pair) for pair in pairs)]
    assert len(pieces) == 97
    core = Tokenizer(models.BPE({piece: index for index, piece in enumerate(pieces)}, pairs))
    return PreTrainedTokenizerFast(tokenizer_object=core)


def test_ids_that_would_be_encoded_otherwise_reach_the_update_as_sampled(tmp_path, monkeypatch):
    tokenizer = pair_tokenizer()
    (tmp_path / "remembering_reward.py").write_text(
        "def score(prompts, completions, completion_ids):\n"
        "    seen.append((completions, completion_ids))\n"
        "    return [float(index) for index in range(len(completions))]\n"
        "seen = []\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "prompts.jsonl").write_text(json.dumps({"prompt": "abcabc"}) + "\n")
    prompts = PromptFile(tmp_path / "prompts.jsonl", Encoder(tokenizer, 97))
    source = SampledRollouts(
        prompts=prompts,
        order=RowOrder(1, shuffle=False, seed=0),
        settings=RolloutConfig(group_size=4),
        stop=StopRules(12, frozenset()),
        reward=Reward(RewardConfig(function="remembering_reward:score")),
        tokenizer=tokenizer,
    )
    with small_machine() as small:
        machine = Machine(
            executor=small.executor,
            engine=small.engine,
            source=source,
            state=small.state,
            replay=small.replay,
            objective=ObjectiveConfig(),
            max_response_tokens=12,
            clock=PhaseClock(),
        )
        works, _ = source.take(0, 0, 1)
        (work,) = update(machine, works, lr=0.0).works
    from remembering_reward import seen

    ((completions, completion_ids),) = seen
    sampled = [response.ids.tolist() for response in work.group.responses]
    assert completion_ids == sampled
    again = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in completions]
    assert all(left != right for left, right in zip(again, sampled, strict=True))
    for response in work.group.responses:
        # What the update scored has the probabilities that the sampler saw, token by token.
        torch.testing.assert_close(response.old_logprobs, response.rollout_logprobs, rtol=1e-10, atol=1e-10)
    write_rollouts(tmp_path / "step.jsonl", [work.group], tokenizer)
    kept = RecordedFile(tmp_path / "step.jsonl", Encoder(tokenizer, 97)).read(0)
    assert kept.prompt.ids.tolist() == work.prompt.ids.tolist()
    assert [response.ids.tolist() for response in kept.responses] == sampled
