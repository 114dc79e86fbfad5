"""A small model with everything an update runs on, without a trainer around it."""

from contextlib import contextmanager
from dataclasses import dataclass

import torch
from transformers import LlamaConfig

from megatron_longstraw.config.schema import OptimizerConfig
from megatron_longstraw.device import cpu
from megatron_longstraw.engine.megatron import MegatronEngine
from megatron_longstraw.model.build import build_model, state_specs
from megatron_longstraw.parallel.layout import process_groups
from megatron_longstraw.replay.branch import replay_branches, score
from megatron_longstraw.replay.capture import ReplaySettings, capture
from megatron_longstraw.replay.execute import Executor
from megatron_longstraw.replay.prompt import prompt_backward
from megatron_longstraw.state.runs import StateSettings
from megatron_longstraw.types import Prompt

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 65536,
    "initializer_range": 0.2,
}


@dataclass
class SmallMachine:
    engine: MegatronEngine
    executor: Executor
    state: StateSettings
    replay: ReplaySettings

    def capture(self, prompt_ids):
        return capture(self.executor, Prompt(prompt_ids), self.state, self.replay)

    def accumulate(self, prompt_ids, responses, weights):
        """Capture, score, replay and prompt backward; gradients stay in the engine's buffers."""
        state = self.capture(prompt_ids)
        score(self.executor, state, responses, self.replay)
        replay_branches(self.executor, state, responses, weights, self.replay)
        prompt_backward(self.executor, state)


@contextmanager
def small_machine(
    *,
    dtype=torch.float64,
    page_tokens=4096,
    replay=None,
    config_class=LlamaConfig,
    vocabulary_multiple=None,
    **sizes,
):
    cpu.install()
    torch.manual_seed(0)
    with process_groups() as layout:
        hf_config = config_class(**(SIZES | sizes))
        model = build_model(hf_config, dtype, layout, vocabulary_multiple=vocabulary_multiple)
        engine = MegatronEngine(model, layout, OptimizerConfig(name="sgd", lr=1.0, clip_grad=0.0))
        specs = state_specs(model, state_dtype=dtype, cotangent_dtype=dtype)
        state = StateSettings(specs, page_tokens, torch.device("cpu"))
        yield SmallMachine(engine, Executor(engine.model, layout), state, replay or ReplaySettings(16))


def draw(tokens, seed=0):
    return torch.randint(97, (tokens,), generator=torch.Generator().manual_seed(seed))
