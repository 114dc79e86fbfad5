"""Engines to save and to resume: their weights, and steps that a seed repeats."""

from pathlib import Path

import torch

from megatron_longstraw.config.schema import OptimizerConfig
from megatron_longstraw.engine.megatron import MegatronEngine
from megatron_longstraw.model.build import build_model, read_hf_config
from megatron_longstraw.parallel.layout import ParallelLayout


def engine_with(
    hf_folder: Path, layout: ParallelLayout, dtype: torch.dtype, optimizer: str, seed: int
) -> MegatronEngine:
    """An engine whose weights are those of a seed."""
    torch.manual_seed(seed)
    settings = OptimizerConfig(name=optimizer, lr=1e-2, weight_decay=0.01)  # type: ignore[arg-type]
    return MegatronEngine(build_model(read_hf_config(hf_folder), dtype, layout), layout, settings)


def step(engine: MegatronEngine, seed: int) -> None:
    """Takes an optimizer step on random gradients."""
    generator = torch.Generator().manual_seed(seed)
    engine.zero_grad()
    for parameter in engine.model.parameters():
        parameter.main_grad.copy_(torch.randn(parameter.shape, generator=generator))
    engine.finalize(3.0)
    assert engine.step(1e-2).applied


def weights(engine: MegatronEngine) -> dict[str, torch.Tensor]:
    """A copy of the weights by Megatron's name."""
    return {name: parameter.detach().clone() for name, parameter in engine.model.named_parameters()}
