"""In bfloat16 the gradient is as good as the conventional one in bfloat16, both against the float32 oracle."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.oracle.conventional import folder_names, grpo_gradient, relative_difference, save_folder, tiny_model
from tests.product import product_gradient
from tests.replay.cases import Case, recorded_groups

PROMPT_TOKENS = 4096
LAYERS = 3
MOST_TIMES_THE_CONVENTIONAL_ERROR = 1.5


@cache
def truth_and_conventional_error(kind: str, prompt_gradient: str) -> tuple[dict[str, Tensor], float]:
    """The gradient of the same weights in float32, and how far the conventional one in bfloat16 is from it."""
    groups, settings = recorded_groups(update(prompt_gradient), kind), update(prompt_gradient).settings
    truth = grpo_gradient(tiny_model(kind, dtype=torch.float32, layers=LAYERS), groups, **settings).gradients
    # Weights of the tiny models are representable in bfloat16: all three have the same.
    model = tiny_model(kind, dtype=torch.bfloat16, layers=LAYERS)
    return truth, relative_difference(grpo_gradient(model, groups, **settings).gradients, truth)


def update(prompt_gradient: str) -> Case:
    return Case(((PROMPT_TOKENS, (40, 64, 25)),), 512, prompt_gradient=prompt_gradient, page_tokens=1024)


@pytest.mark.parametrize(
    ("kind", "prompt_gradient", "segment_tokens"),
    [
        ("llama", "full", 100),
        ("llama", "full", 512),
        ("llama", "full", 4096),
        ("qwen3", "full", 1024),
        ("llama", "stop", 512),
    ],
)
def test_error_is_at_most_one_and_a_half_times_the_conventional_one(
    kind: str, prompt_gradient: str, segment_tokens: int, tmp_path: Path
) -> None:
    truth, conventional_error = truth_and_conventional_error(kind, prompt_gradient)
    folder = save_folder(tiny_model(kind, dtype=torch.bfloat16, layers=LAYERS), tmp_path / "model")
    case = replace(update(prompt_gradient), segment_tokens=segment_tokens)
    groups = recorded_groups(case, kind)
    ours, _ = product_gradient(tmp_path, folder, groups, dtype="bfloat16", overrides=case.overrides)
    assert relative_difference(ours, truth) <= MOST_TIMES_THE_CONVENTIONAL_ERROR * conventional_error


@pytest.mark.parametrize("segment_tokens", [100, 512])
@pytest.mark.parametrize("kind", ["qwen3_moe", "qwen3_moe_mixed"])
def test_so_it_is_with_experts_where_rounding_cannot_choose_others(
    kind: str, segment_tokens: int, tmp_path: Path
) -> None:
    # Every token takes every expert. With a choice, what is compared is who met a near tie, by far.
    case = Case(((1024, (40, 64, 25)),), segment_tokens, page_tokens=256)
    groups = recorded_groups(case, kind)

    def conventional(dtype: torch.dtype) -> dict[str, Tensor]:
        model = tiny_model(kind, dtype=dtype, layers=LAYERS, num_experts_per_tok=8)
        return folder_names(grpo_gradient(model, groups, **case.settings).gradients)

    truth = conventional(torch.float32)
    model = tiny_model(kind, dtype=torch.bfloat16, layers=LAYERS, num_experts_per_tok=8)
    folder = save_folder(model, tmp_path / "model")
    ours, _ = product_gradient(tmp_path, folder, groups, dtype="bfloat16", overrides=case.overrides)
    conventional_error = relative_difference(conventional(torch.bfloat16), truth)
    assert relative_difference(ours, truth) <= MOST_TIMES_THE_CONVENTIONAL_ERROR * conventional_error
