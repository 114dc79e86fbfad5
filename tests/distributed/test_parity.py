"""Every layout samples the same tokens and has the same log-probs and the same gradient as a single rank."""

from pathlib import Path

import pytest
import torch

from megatron_longstraw.model.build import read_hf_config
from tests.distributed.parity import update_on_a_rank, whole_gradient
from tests.oracle.conventional import relative_difference, save_folder, tiny_model

pytestmark = pytest.mark.distributed

LAYOUTS = {
    "tp2": {"tensor": 2},
    "tp2-sp": {"tensor": 2, "sequence_parallel": True},
    "tp4-sp": {"tensor": 4, "sequence_parallel": True},
}
KINDS = ("llama", "qwen2", "qwen3_tied", "qwen3_moe")
TOLERANCES = {"float64": 1e-12, "float32": 1e-5}


def world(sizes: dict[str, int]) -> int:
    return sizes.get("tensor", 1)


def combinations():
    for kind in KINDS:
        for name, sizes in LAYOUTS.items():
            # Experts need sequence parallelism beside tensor parallelism; heads must divide evenly among the ranks.
            if kind == "qwen3_moe" and not sizes.get("sequence_parallel"):
                continue
            if kind == "qwen2" and sizes["tensor"] == 4:
                continue
            yield pytest.param(kind, sizes, id=f"{kind}-{name}")


@pytest.mark.parametrize("prompt_gradient", ["full", "stop", 9])
@pytest.mark.parametrize(("kind", "sizes"), list(combinations()))
def test_one_update_is_that_of_a_single_rank(ranks, kind, sizes, prompt_gradient, tmp_path: Path) -> None:
    folder = save_folder(tiny_model(kind), tmp_path / "hf")
    # Neither the segment nor the prompt nor the responses divide evenly.
    arguments = (str(folder), "float64", prompt_gradient, 7)
    (alone,) = ranks(1).run(update_on_a_rank, arguments[0], {}, *arguments[1:])
    answers = ranks(world(sizes)).run(update_on_a_rank, arguments[0], sizes, *arguments[1:])
    hf_config = read_hf_config(folder)
    assert len({len(ids) for ids in alone["ids"]}) > 1
    for answer in answers:
        assert answer["ids"] == alone["ids"]
        for what in ("rollout_logprobs", "logprobs", "entropies"):
            for ours, truth in zip(answer[what], alone[what], strict=True):
                torch.testing.assert_close(torch.from_numpy(ours), torch.from_numpy(truth), rtol=1e-11, atol=1e-11)
        assert answer["grad_norm"] == pytest.approx(alone["grad_norm"], rel=1e-11)
    truth = whole_gradient([alone], hf_config)
    assert relative_difference(whole_gradient(answers, hf_config), truth) <= TOLERANCES["float64"]
