"""Pages hold what was written, wherever they are cut."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from megatron_longstraw.state.pages import LayerPages, PageTable
from megatron_longstraw.state.runs import DecodeState, RunState, StateSettings
from megatron_longstraw.state.spec import LayerStateSpec

CPU = torch.device("cpu")
SPEC = LayerStateSpec(1, "attention", {"key": (2, 3), "value": (2, 3)}, torch.float64, torch.float64)


def runs(page_tokens=4):
    settings = StateSettings((SPEC,), page_tokens, CPU)
    prompt = RunState(settings, start=0, capacity=10, cotangent_start=6)
    return settings, prompt


@given(
    cuts=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    page_tokens=st.integers(1, 12),
    stop_share=st.floats(0, 1),
)
def test_what_was_appended_is_read_back(cuts, page_tokens, stop_share):
    tokens = torch.randn(sum(cuts), 2, 3, dtype=torch.float64)
    pages = LayerPages(SPEC, PageTable(len(tokens), page_tokens), CPU)
    start = 0
    for cut in cuts:
        pages.write("key", start, tokens[start : start + cut])
        start += cut
    stop = round(stop_share * len(tokens))
    read = [state for state, _ in pages.read("key", stop)]
    empty = torch.empty(2, 0, 3, dtype=torch.float64)
    assert torch.equal(torch.cat([empty, *read], dim=1), tokens[:stop].transpose(0, 1))


@given(page_tokens=st.integers(1, 12), start=st.integers(0, 9), length=st.integers(1, 10))
def test_cotangents_accumulate_through_the_views_that_were_read(page_tokens, start, length):
    stop = min(start + length, 10)
    pages = LayerPages(SPEC, PageTable(10, page_tokens), CPU)
    expected = torch.zeros(2, 10, 3, dtype=torch.float64)
    for reach in (10, 7):
        done = 0
        for state, cotangent in pages.read("value", reach):
            part = torch.randn(state.shape, dtype=torch.float64)
            cotangent.add_(part)
            expected[:, done : done + part.shape[1]] += part
            done += part.shape[1]
        assert done == reach
    if start < stop:
        assert torch.equal(pages.cotangent("value", start, stop), expected[:, start:stop].transpose(0, 1))


def test_pages_before_the_gradient_have_no_cotangent():
    pages = LayerPages(SPEC, PageTable(capacity=10, page_tokens=4, cotangent_start=6), CPU)
    assert [cotangent is None for _, cotangent in pages.read("key", 10)] == [True, False, False]


def test_allocated_bytes_are_those_of_the_spec():
    table = PageTable(capacity=10, page_tokens=4)
    pages = LayerPages(SPEC, table, CPU)
    state = sum(tensor.nbytes for name in ("key", "value") for tensor, _ in pages.read(name, 10))
    cotangent = sum(tensor.nbytes for name in ("key", "value") for _, tensor in pages.read(name, 10))
    assert state == 10 * SPEC.state_bytes_per_token == 10 * 2 * 2 * 3 * 8
    assert cotangent == 10 * SPEC.cotangent_bytes_per_token


@pytest.mark.parametrize("cotangent_start", range(11))
def test_reported_cotangent_bytes_are_the_allocated_ones(cotangent_start):
    run = RunState(StateSettings((SPEC,), 4, CPU), start=0, capacity=10, cotangent_start=cotangent_start)
    pages = run.layer(1).past(10)
    allocated = sum(grad.nbytes for page in pages for grad in (page.d_key, page.d_value) if grad is not None)
    assert run.cotangent_bytes == allocated


def test_a_branch_reads_its_prompt_and_leaves_its_boundary_as_it_was():
    settings, prompt = runs()
    prompt.layer(1).append(0, torch.ones(10, 2, 3), torch.ones(10, 2, 3))
    for fill in (2.0, 3.0):
        branch = RunState(settings, start=10, capacity=3, parent=prompt)
        branch.layer(1).append(0, torch.full((3, 2, 3), fill), torch.full((3, 2, 3), fill))
        keys = torch.cat([page.key for page in branch.past(1, 12)], dim=1)
        assert keys[0, :, 0].tolist() == [1.0] * 10 + [fill] * 2
    assert sum(page.key.shape[1] for page in prompt.past(1, 10)) == 10
    assert all(bool((page.key == 1).all()) for page in prompt.past(1, 10))


def test_decoding_rows_keep_their_own_tokens_when_others_end():
    _, prompt = runs()
    rows = DecodeState(prompt, rows=3, capacity=4)
    for token in range(2):
        key = torch.arange(3.0).view(1, 3, 1, 1).expand(1, 3, 2, 3) + 10 * token
        own_key, _ = rows.layer(1).append(rows.tokens, key, key)
        rows.advance()
    assert own_key[:, 0, :, 0].tolist() == [[0, 10], [1, 11], [2, 12]]
    rows.keep([0, 2])
    own_key, _ = rows.layer(1).append(rows.tokens, key[:, :2], key[:, :2])
    assert own_key[:, 0, :2, 0].tolist() == [[0, 10], [2, 12]]
    assert rows.position == 12
