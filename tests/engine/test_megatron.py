"""One optimizer step of Megatron's, held against the formula."""

import pytest
import torch
from machine import small_machine

from megatron_longstraw.config.schema import OptimizerConfig
from megatron_longstraw.engine.megatron import MegatronEngine


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-14), (torch.float32, 1e-6)])
@pytest.mark.parametrize("clip_grad", [0.0, 0.5, 1e6])
def test_sgd_moves_by_the_clipped_mean_gradient(dtype, tolerance, clip_grad):
    with small_machine(dtype=dtype) as machine:
        model = machine.engine.model.module
        engine = MegatronEngine(model, machine.executor.layout, OptimizerConfig("sgd", lr=9.0, clip_grad=clip_grad))
        engine.zero_grad()
        before = [parameter.detach().clone() for parameter in model.parameters()]
        sums = [torch.randn(parameter.shape, dtype=torch.float64) for parameter in before]
        for parameter, value in zip(model.parameters(), sums, strict=True):
            parameter.main_grad.copy_(value)
        engine.finalize(7)
        result = engine.step(0.1)
        norm = sum(float((value / 7).pow(2).sum()) for value in sums) ** 0.5
        scale = min(1.0, clip_grad / norm) if clip_grad else 1.0
        assert result.grad_norm == pytest.approx(norm, rel=tolerance)
        for parameter, old, value in zip(model.parameters(), before, sums, strict=True):
            moved = (old - parameter.detach()).double()
            torch.testing.assert_close(moved, 0.1 * scale * value / 7, rtol=1e-5, atol=50 * tolerance)


def test_a_gradient_that_is_not_finite_moves_nothing():
    with small_machine() as machine:
        machine.engine.zero_grad()
        parameters = list(machine.engine.model.parameters())
        before = [parameter.detach().clone() for parameter in parameters]
        parameters[0].main_grad[0, 0] = float("inf")
        machine.engine.finalize(1)
        result = machine.engine.step(0.1)
        assert (result.applied, result.grad_norm) == (False, 0.0)
        assert all(torch.equal(old, new) for old, new in zip(before, parameters, strict=True))
