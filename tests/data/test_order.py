"""The order of rows as a pure function of a position."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_longstraw.data.order import RowOrder, take
from megatron_longstraw.errors import InputError


@given(rows=st.integers(1, 30), seed=st.integers(0, 2**32 - 1), epoch=st.integers(0, 3), shuffle=st.booleans())
def test_every_epoch_visits_every_row_once(rows: int, seed: int, epoch: int, shuffle: bool) -> None:
    order = RowOrder(rows, shuffle=shuffle, seed=seed)
    assert sorted(order.row(epoch * rows + index) for index in range(rows)) == list(range(rows))


@given(positions=st.lists(st.integers(0, 100), max_size=10), seed=st.integers(0, 9))
def test_a_position_has_the_same_row_whatever_was_asked_before(positions: list[int], seed: int) -> None:
    used = RowOrder(7, shuffle=True, seed=seed)
    assert [used.row(p) for p in positions] == [RowOrder(7, shuffle=True, seed=seed).row(p) for p in positions]


def test_epochs_and_seeds_differ_and_the_files_order_stays_without_shuffle() -> None:
    first = [RowOrder(50, shuffle=True, seed=0).row(position) for position in range(100)]
    assert first[:50] != first[50:]
    assert first[:50] != [RowOrder(50, shuffle=True, seed=1).row(position) for position in range(50)]
    assert [RowOrder(3, shuffle=False, seed=0).row(position) for position in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_the_order_is_the_one_of_earlier_versions() -> None:
    assert [RowOrder(10, shuffle=True, seed=3).row(p) for p in range(12)] == [5, 8, 1, 0, 3, 6, 7, 4, 9, 2, 6, 2]


def test_dropped_rows_are_passed_over_and_the_position_goes_on_behind_them() -> None:
    order = RowOrder(4, shuffle=False, seed=0)
    rows = {0: "a", 3: "d"}
    items, position = take(rows.get, order, position=0, count=2)
    assert (items, position) == (["a", "d"], 4)
    assert take(rows.get, order, position=position, count=1) == (["a"], 5)


def test_a_file_whose_rows_are_all_dropped_is_refused() -> None:
    with pytest.raises(InputError, match=r"^data.overlong: drops every row"):
        take(lambda row: None, RowOrder(3, shuffle=True, seed=0), position=1, count=1)


@given(rows=st.integers(1, 6), kept=st.integers(0, 5), seed=st.integers(0, 50), count=st.integers(1, 20))
def test_a_file_with_one_row_that_is_kept_gives_it_again_and_again(rows: int, kept: int, seed: int, count: int) -> None:
    order = RowOrder(rows, shuffle=True, seed=seed)
    items, position = take(lambda row: "kept" if row == kept % rows else None, order, position=0, count=count)
    assert items == ["kept"] * count
    assert order.row(position - 1) == kept % rows
