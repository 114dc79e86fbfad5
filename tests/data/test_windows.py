"""A long text in windows has the ids of the whole text."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kinds_of_tokenizers import ADDED, KINDS, SPECIAL, corpus, tokenizer_of

from megatron_longstraw.data import windows
from megatron_longstraw.data.windows import token_ids

every_kind = pytest.mark.parametrize("kind", KINDS)
PROSE = "\n\n".join(corpus())
RUNS = ("a", "ab", "1", " ", "\n", "\r\n", " \n", "-", "é", "e\u0301", "中", "🙂", "👩\u200d🔬", "\t", "'", "A")
fragments = st.one_of(
    st.builds(lambda at, n: PROSE[at : at + n], st.integers(0, len(PROSE) - 1), st.integers(1, 200)),
    st.builds(lambda run, n: run * n, st.sampled_from(RUNS), st.integers(1, 80)),
    st.sampled_from([SPECIAL, ADDED, "x" * 130, "don't", "<|en", "l>"]),
    st.text(max_size=8),
)
texts = st.lists(fragments, min_size=1, max_size=12).map("".join)


def whole(tokenizer: Any, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]


@every_kind
@given(text=texts, window=st.integers(24, 300), share=st.integers(8, 90))
def test_windows_give_the_ids_of_the_whole_text(kind: str, text: str, window: int, share: int) -> None:
    tokenizer = tokenizer_of(kind)
    ids = token_ids(tokenizer, text, window=window, overlap=max(window * share // 100, 1))
    assert ids.tolist() == whole(tokenizer, text)


@pytest.mark.parametrize(
    ("kind", "text", "window", "overlap"),
    [
        # A word that is unknown for its length, and whose halves are not.
        ("word_piece", "xqzjkvwxqzjkvwxqzjkvwxqzjkvwxqzjkvwx", 28, 20),
        # A token whose halves are words.
        ("gpt_2", f"{PROSE[:100]}{ADDED}{PROSE[100:200]}", 108, 6),
        # In both windows "ab" is best, in the whole text "ba".
        ("phases", f"L{'ab' * 40}R", 61, 40),
        # Characters of several tokens, windows of one character's tokens.
        ("llama_2", "🙂🤣" * 40, 24, 4),
        # Merges that depend on where a run begins.
        ("llama_2", "a" * 333, 50, 25),
        ("gpt_2", "1" * 333 + "a", 50, 25),
    ],
)
def test_windows_that_seem_to_agree(kind: str, text: str, window: int, overlap: int) -> None:
    assert token_ids(tokenizer_of(kind), text, window=window, overlap=overlap).tolist() == whole(
        tokenizer_of(kind), text
    )


class Recording:
    """A tokenizer that remembers the texts it was given."""

    def __init__(self, kind: str) -> None:
        self.texts: list[str] = []
        self._tokenizer = tokenizer_of(kind)

    def __call__(self, text: str | list[str], **kwargs: Any) -> Any:
        self.texts.extend([text] if isinstance(text, str) else text)
        return self._tokenizer(text, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


@pytest.mark.parametrize("kind", sorted({*KINDS} - {"unigram_one_word", "phases"}))
def test_prose_is_never_given_whole(kind: str) -> None:
    tokenizer = Recording(kind)
    text = PROSE[:30_000]
    ids = token_ids(tokenizer, text, window=4000, overlap=500)
    assert len(tokenizer.texts) > 5
    assert max(len(window) for window in tokenizer.texts) <= 4000
    assert ids.tolist() == whole(tokenizer_of(kind), text)


@every_kind
def test_a_word_longer_than_many_windows_is_whole(kind: str) -> None:
    text = PROSE[:1000] + "a" * 3001 + PROSE[1000:2000] + " " * 501 + "\n." + "1" * 500
    assert token_ids(tokenizer_of(kind), text, window=200, overlap=20).tolist() == whole(tokenizer_of(kind), text)


def test_little_is_tokenised_twice_where_a_long_word_needs_long_windows() -> None:
    tokenizer = Recording("gpt_2")
    text = PROSE[:1000] + "ab" * 200_000 + PROSE[1000:20_000]
    assert token_ids(tokenizer, text, window=20_000, overlap=100).tolist() == whole(tokenizer_of("gpt_2"), text)
    assert sum(len(window) for window in tokenizer.texts) < 5 * len(text)


@pytest.mark.parametrize(("window", "tellings"), [(500, 3), (100_000, 2)])
def test_progress_counts_characters_up_to_the_end(window: int, tellings: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "BATCH_CHARACTERS", 5000)
    told: list[tuple[int, int]] = []
    token_ids(tokenizer_of("gpt_2"), PROSE[:10_000], lambda *pair: told.append(pair), window=window, overlap=100)
    done = [pair[0] for pair in told]
    assert len(done) >= tellings
    assert (done[0], done[-1]) == (0, 10_000)
    assert done == sorted(set(done))
    assert {pair[1] for pair in told} == {10_000}
