"""A segment that is run again takes the experts it was captured with, in any dtype."""

import pytest
import torch
from machine import draw, small_machine
from transformers import Qwen3MoeConfig

from megatron_longstraw.model.router import Router
from megatron_longstraw.replay.capture import ReplaySettings
from megatron_longstraw.replay.prompt import prompt_backward

EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True}


@pytest.mark.parametrize("prompt_gradient", ["full", 150])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_prompt_backward_takes_the_experts_of_capture(dtype, prompt_gradient):
    replay = ReplaySettings(48, prompt_gradient)
    with small_machine(dtype=dtype, replay=replay, config_class=Qwen3MoeConfig, head_dim=8, **EXPERTS) as machine:
        taken = []
        for module in machine.engine.model.modules():
            if isinstance(module, Router):
                module.register_forward_hook(lambda _, inputs, outputs: taken.append(outputs))
        state = machine.capture(draw(301))
        captured, taken[:] = list(taken), []
        prompt_backward(machine.executor, state)
        # The last of three layers stops at its state, before its experts.
        by_segment = [captured[index : index + 2] for index in range(0, len(captured), 2)]
        again = [taken[index : index + 2] for index in range(0, len(taken), 2)]
        assert len(again) == len(state.gradient_spans)
        for first, second in zip(by_segment[-len(again) :], reversed(again), strict=True):
            for (weights, mask), (other_weights, other_mask) in zip(first, second, strict=True):
                assert torch.equal(mask, other_mask)
                assert torch.equal(weights, other_weights)
                assert (mask.sum(-1) == 2).all()
        assert torch.cat([mask for layers in again for _, mask in layers]).any(0).all()
