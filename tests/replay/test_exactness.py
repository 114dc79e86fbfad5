"""The gradient is the conventional one, whatever the lengths, the segments, the objective and the prompt gradient."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings

from tests.oracle.conventional import folder_names, grpo_gradient, relative_difference, save_folder, tiny_model
from tests.product import product_gradient
from tests.replay.cases import Case, cases, recorded_groups

KINDS = ("llama", "qwen2", "qwen3", "qwen3_tied", "qwen3_moe", "qwen3_moe_mixed")
ROPE_KINDS = ("llama3_rope", "llama_linear_rope", "llama_yarn", "mistral")
TOLERANCES = {torch.float64: 1e-12, torch.float32: 2e-5}
Compare = Callable[..., None]

# Prompt and responses of each group; the comment says what the case adds.
NAMED_CASES = {
    "prompt-a-multiple-of-the-segment": Case(((33, (5, 9, 2)),), 8),
    "prompt-not-a-multiple": Case(((30, (5, 9, 2)),), 8),
    "one-token-prompt": Case(((1, (5, 9, 2)),), 8),
    "two-token-prompt": Case(((2, (5, 9, 2)),), 8),
    "one-token-responses": Case(((17, (1, 1, 1)),), 4),
    "one-token-everything": Case(((1, (1, 1)),), 1),
    "responses-of-several-segments": Case(((21, (30, 7, 15, 16)),), 8),
    "segments-of-one-token": Case(((9, (3, 1, 4)),), 1),
    "segment-beyond-the-prompt": Case(((20, (6, 3)),), 500),
    "nine-responses": Case(((20, (4, 1, 6, 3, 8, 2, 5, 7, 9)),), 16),
    "masked": Case(((20, (12, 5, 9)),), 8, masked=True),
    "unscored": Case(((20, (12, 5, 9)),), 8, unscored=True),
    "clipped": Case(((20, (12, 5, 9)),), 8, off_policy=True),
    "sequence-mean": Case(((20, (12, 5, 9)),), 8, aggregation="sequence", masked=True),
    "constant-divisor": Case(((20, (12, 5, 9)),), 8, aggregation="constant", masked=True),
    "cool": Case(((20, (12, 5, 9)),), 8, temperature=0.6),
    "several-groups": Case(((20, (12, 5)), (3, (1, 7, 4)), (1, (2, 20))), 8, masked=True, off_policy=True),
    "stop": Case(((20, (12, 5, 9)),), 8, prompt_gradient="stop"),
    "stop-one-token-prompt": Case(((1, (12, 5, 9)),), 8, prompt_gradient="stop"),
    "window-of-one": Case(((20, (12, 5, 9)),), 8, prompt_gradient=1),
    "window-within-a-segment": Case(((20, (12, 5, 9)),), 8, prompt_gradient=6),
    "window-ending-at-a-boundary": Case(((25, (12, 5, 9)),), 8, prompt_gradient=9),
    "window-over-segments": Case(((40, (12, 5, 9)),), 8, prompt_gradient=21),
    "window-of-the-whole-prompt": Case(((20, (12, 5, 9)),), 8, prompt_gradient=20),
    "window-beyond-the-prompt": Case(((20, (12, 5, 9)), (2, (3, 3))), 8, prompt_gradient=21),
}


@pytest.fixture(scope="module")
def compare(tmp_path_factory: pytest.TempPathFactory) -> Compare:
    """Compares the product's gradient with the oracle's; models are written once."""
    folders: dict[tuple[str, torch.dtype], Path] = {}

    def run(kind: str, case: Case, dtype: torch.dtype = torch.float64) -> None:
        model = tiny_model(kind, dtype=dtype)
        if (kind, dtype) not in folders:
            folders[kind, dtype] = save_folder(model, tmp_path_factory.mktemp(kind))
        groups = recorded_groups(case, kind)
        truth = grpo_gradient(model, groups, **case.settings)
        with tempfile.TemporaryDirectory() as run_folder:
            gradient, line = product_gradient(
                run_folder,
                folders[kind, dtype],
                groups,
                dtype=str(dtype).removeprefix("torch."),
                overrides=case.overrides,
            )
        tolerance = TOLERANCES[dtype]
        assert relative_difference(gradient, folder_names(truth.gradients)) <= tolerance
        assert line["loss"] == pytest.approx(truth.loss, rel=10 * tolerance, abs=10 * tolerance)

    return run


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", NAMED_CASES.values(), ids=NAMED_CASES.keys())
def test_gradient_equals_the_conventional_one(compare: Compare, case: Case, kind: str) -> None:
    compare(kind, case)


@pytest.mark.parametrize("kind", ROPE_KINDS)
@pytest.mark.parametrize("prompt_gradient", ["full", 11])
def test_gradient_is_exact_for_every_rotary_scaling(compare: Compare, kind: str, prompt_gradient: str | int) -> None:
    # Longer than the scaled models' original 64 positions.
    compare(kind, Case(((90, (12, 5, 9)),), 16, prompt_gradient=prompt_gradient))


@pytest.mark.parametrize("kind", KINDS)
@given(case=cases())
@settings(max_examples=40)
def test_gradient_is_exact_for_any_update(compare: Compare, kind: str, case: Case) -> None:
    compare(kind, case)


@pytest.mark.parametrize("kind", KINDS)
@given(case=cases())
@settings(max_examples=15)
def test_gradient_is_exact_to_rounding_in_float32(compare: Compare, kind: str, case: Case) -> None:
    compare(kind, case, torch.float32)


@pytest.mark.parametrize("kind", ["qwen2", "qwen3_moe"])
@pytest.mark.parametrize("prompt_gradient", ["full", "stop", 7])
def test_gradient_does_not_depend_on_the_segments(compare: Compare, prompt_gradient: str | int, kind: str) -> None:
    for segment_tokens in range(1, 26):
        compare(kind, Case(((23, (11, 2, 6)),), segment_tokens, prompt_gradient=prompt_gradient))


@pytest.mark.parametrize("group_size", range(1, 10))
def test_gradient_is_exact_for_every_group_size(compare: Compare, group_size: int) -> None:
    compare("llama", Case(((19, tuple(range(1, group_size + 1))),), 10))
