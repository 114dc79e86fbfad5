"""Every token runs once, in order, within the budget."""

from hypothesis import given
from hypothesis import strategies as st

from megatron_longstraw.replay.plan import branch_batches, gradient_start, prompt_spans

lengths = st.lists(st.integers(1, 60), min_size=1, max_size=12)


@given(tokens=st.integers(0, 200), segment_tokens=st.integers(1, 250), first=st.integers(0, 220))
def test_prompt_spans_cover_every_token_once_in_order(tokens, segment_tokens, first):
    spans = prompt_spans(tokens, segment_tokens, first)
    assert [position for span in spans for position in range(span.start, span.stop)] == list(range(tokens))
    assert all(1 <= span.tokens <= segment_tokens for span in spans)


@given(tokens=st.integers(0, 200), segment_tokens=st.integers(1, 250), first=st.integers(0, 220))
def test_no_prompt_span_crosses_the_start_of_the_gradient(tokens, segment_tokens, first):
    assert all(span.stop <= first or span.start >= first for span in prompt_spans(tokens, segment_tokens, first))


@given(lengths=lengths, segment_tokens=st.integers(1, 80))
def test_every_branch_runs_in_exactly_one_batch_within_the_budget(lengths, segment_tokens):
    batches = branch_batches(lengths, segment_tokens)
    assert sorted(branch for batch in batches for branch in batch.branches) == list(range(len(lengths)))
    for batch in batches:
        longest = max(lengths[branch] for branch in batch.branches)
        assert batch.spans[0].start == 0
        assert batch.spans[-1].stop == longest
        for span in batch.spans:
            assert len(batch.branches) * span.tokens <= segment_tokens


@given(lengths=lengths, segment_tokens=st.integers(1, 80))
def test_a_chain_is_a_single_branch(lengths, segment_tokens):
    for batch in branch_batches(lengths, segment_tokens):
        assert len(batch.spans) == 1 or len(batch.branches) == 1


def test_short_branches_share_one_batch():
    assert len(branch_batches([5] * 8, 40)) == 1
    assert len(branch_batches([5] * 8, 39)) == 2


def test_a_window_counts_the_last_prompt_token():
    assert gradient_start(10, "stop") == gradient_start(10, 1) == 9
    assert gradient_start(10, "full") == gradient_start(10, 10) == gradient_start(10, 99) == 0
    assert gradient_start(10, 3) == 7
