"""What a step takes from its source."""

import json

import pytest

from megatron_longstraw.data.order import RowOrder
from megatron_longstraw.data.recorded import RecordedFile
from megatron_longstraw.data.template import Encoder
from megatron_longstraw.rollout.source import RecordedRollouts


@pytest.mark.parametrize(("asked", "taken"), [(2, [0, 1]), (3, [0, 1, 2]), (8, [0, 1, 2])])
def test_a_step_takes_no_recorded_group_twice(tmp_path, asked, taken):
    lines = [{"prompt_ids": [row], "responses": [{"ids": [1], "reward": 1.0}]} for row in range(3)]
    (tmp_path / "recorded.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    groups = RecordedFile(tmp_path / "recorded.jsonl", Encoder(None, 10))
    works, position = RecordedRollouts(groups, RowOrder(3, shuffle=False, seed=0)).take(0, 5, asked)
    assert [int(work.prompt.ids) for work in works] == taken
    assert [work.number for work in works] == [5 + row for row in taken]
    assert position == len(taken)
