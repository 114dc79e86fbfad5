"""In bfloat16 the gradient is as good as the conventional one in bfloat16, both against the float32 oracle."""

from pathlib import Path

import pytest
import torch

from tests.oracle.conventional import grpo_gradient, relative_difference, save_folder, tiny_model
from tests.product import product_gradient
from tests.replay.cases import Case, recorded_groups

PROMPT_TOKENS = 4096
MOST_TIMES_THE_CONVENTIONAL_ERROR = 1.5


@pytest.mark.parametrize(("kind", "prompt_gradient"), [("llama", "full"), ("qwen3", "full"), ("llama", "stop")])
def test_error_is_at_most_one_and_a_half_times_the_conventional_one(
    kind: str, prompt_gradient: str, tmp_path: Path
) -> None:
    case = Case(((PROMPT_TOKENS, (40, 64, 25, 33)),), 512, prompt_gradient=prompt_gradient, page_tokens=1024)
    groups = recorded_groups(case, kind)
    truth = grpo_gradient(tiny_model(kind, dtype=torch.float32), groups, **case.settings).gradients
    # Weights of the tiny models are representable in bfloat16: all three have the same.
    model = tiny_model(kind, dtype=torch.bfloat16)
    conventional = grpo_gradient(model, groups, **case.settings).gradients
    ours, _ = product_gradient(
        tmp_path, save_folder(model, tmp_path / "model"), groups, dtype="bfloat16", overrides=case.overrides
    )
    limit = MOST_TIMES_THE_CONVENTIONAL_ERROR * relative_difference(conventional, truth)
    assert relative_difference(ours, truth) <= limit
