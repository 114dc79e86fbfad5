"""A run whose reward is the sum of several functions: what its metrics and rollouts say of each."""

from pathlib import Path

import pytest

from megatron_longstraw.cli import main
from tests.cli.train_runs import GOLDEN_CONFIG, ROOT
from tests.run_files import metrics, rollouts

REWARDS = """reward.functions=[
    {function: 'tests.golden.reward:reward', weight: 2},
    {function: length_penalty, weight: 0.5, kwargs: {target_tokens: 4, max_tokens: 24}},
    {function: 'tests.rewards.test_several_in_a_run:never'},
]"""


def never(completions: list[str], **_: object) -> list[None]:
    return [None] * len(completions)


def test_each_functions_share_is_in_the_metrics_and_the_rollouts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    arguments = ["train", GOLDEN_CONFIG, f"run_dir={tmp_path / 'run'}", "reward.function=null", REWARDS]
    # The second time, one step more: the same functions are the same run.
    for steps in (1, 2):
        assert main([*arguments, f"train.steps={steps}"]) == 0
    for line, groups in zip(metrics(tmp_path / "run"), rollouts(tmp_path / "run"), strict=True):
        responses = [response for group in groups for response in group["responses"]]
        for response in responses:
            parts = response["reward_parts"]
            assert list(parts) == ["reward", "length_penalty", "never"]
            assert parts["length_penalty"] == pytest.approx(min(0.0, (4 - len(response["ids"])) / 20))
            assert parts["never"] is None
            assert response["reward"] == pytest.approx(2 * parts["reward"] + 0.5 * parts["length_penalty"])
        for name in ("reward", "length_penalty"):
            mean = sum(response["reward_parts"][name] for response in responses) / len(responses)
            assert line[f"reward/{name}/mean"] == pytest.approx(mean)
        assert line["reward/mean"] == pytest.approx(sum(r["reward"] for r in responses) / len(responses))
        # What scored nothing has no mean.
        assert "reward/never/mean" not in line
