"""One update on every rank of a layout, and what it leaves, put together from the ranks' parts."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from megatron_longstraw.checkpoint.families import to_hf
from megatron_longstraw.checkpoint.hf_read import load_hf_weights
from megatron_longstraw.checkpoint.pieces import weight_pieces
from megatron_longstraw.config.schema import OptimizerConfig
from megatron_longstraw.engine.megatron import MegatronEngine
from megatron_longstraw.model.build import build_model, read_hf_config, state_specs
from megatron_longstraw.parallel.layout import process_groups
from megatron_longstraw.replay.branch import replay_branches, score
from megatron_longstraw.replay.capture import ReplaySettings, capture
from megatron_longstraw.replay.execute import Executor
from megatron_longstraw.replay.prompt import prompt_backward
from megatron_longstraw.rollout.decode import StopRules, decode_group
from megatron_longstraw.rollout.sampling import SamplingSettings
from megatron_longstraw.state.runs import StateSettings
from megatron_longstraw.types import Prompt

# Of the sampled tokens.
SEED = 5


def update_on_a_rank(
    hf: str, sizes: Mapping[str, Any], dtype_name: str, prompt_gradient: str | int, segment_tokens: int
) -> dict[str, Any]:
    """Samples a group, scores it, and replays it with random weights; runs on every rank.

    Returns:
        Sampled ids, log-probs and entropies, the gradient's norm, and this rank's pieces of the whole gradient.
    """
    dtype = getattr(torch, dtype_name)
    with process_groups(**sizes) as layout:
        hf_config = read_hf_config(hf)
        model = build_model(hf_config, dtype, layout)
        load_hf_weights(model, hf_config, hf)
        engine = MegatronEngine(model, layout, OptimizerConfig(name="sgd", lr=1.0, clip_grad=0.0))
        executor = Executor(engine.model, layout)
        specs = state_specs(model, state_dtype=dtype, cotangent_dtype=dtype)
        settings = StateSettings(specs, 7, torch.device("cpu"), layout.groups.cp.rank())
        replay = ReplaySettings(segment_tokens, prompt_gradient, temperature=0.8)
        prompt_ids = torch.randint(97, (29,), generator=torch.Generator().manual_seed(1))
        state = capture(executor, Prompt(prompt_ids), settings, replay)
        stop = StopRules(11, frozenset(range(12)))
        sampling = SamplingSettings(0.8, 0.95, 60)
        sampled = decode_group(executor, state, rows=4, group=0, seed=SEED, sampling=sampling, stop=stop)
        responses = [response.ids for response in sampled]
        logprobs, entropies = score(executor, state, responses, replay)
        generator = torch.Generator().manual_seed(2)
        weights = [torch.randn(len(ids), generator=generator, dtype=torch.float64).to(dtype) for ids in responses]
        replay_branches(executor, state, responses, weights, replay)
        prompt_backward(executor, state)
        engine.finalize(3.0)
        return {
            "ids": [ids.tolist() for ids in responses],
            "rollout_logprobs": [response.rollout_logprobs.double().numpy() for response in sampled],
            "logprobs": [values.double().numpy() for values in logprobs],
            "entropies": [values.double().numpy() for values in entropies],
            "pieces": gradient_pieces(model),
            "grad_norm": engine.step(0.0).grad_norm,
        }


def gradient_pieces(model: Any) -> list[tuple[str, tuple[int, ...], tuple[slice, ...], Any]]:
    """Name, whole shape, region and gradient of every piece of a rank."""
    for parameter in model.parameters():
        # Pieces are views of the parameters.
        parameter.data.copy_(parameter.main_grad)
    return [
        (piece.name, tuple(piece.shape), piece.region, piece.target.detach().double().numpy().copy())
        for piece in weight_pieces(model)
    ]


def whole_gradient(answers: Sequence[Mapping[str, Any]], hf_config: Any) -> dict[str, Tensor]:
    """Puts the ranks' pieces together, by Hugging Face name; copies must agree, and no element be missing."""
    whole: dict[str, Tensor] = {}
    for answer in answers:
        for name, shape, region, values in answer["pieces"]:
            target = whole.setdefault(name, torch.full(shape, float("nan"), dtype=torch.float64))
            known = target[region]
            new = torch.from_numpy(values)
            both = ~known.isnan()
            scale = 1e-30 + float(new.abs().max()) if new.numel() else 1.0
            assert not both.any() or float((known - new)[both].abs().max()) <= 1e-5 * scale, name
            target[region] = new
    assert not [name for name, tensor in whole.items() if tensor.isnan().any()]
    return dict(to_hf(whole, hf_config))
