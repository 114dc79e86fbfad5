"""Tokenises a long text window by window, to exactly the ids of one call on the whole text.

Consecutive windows overlap. Near its ends a window has other tokens than the whole text; further in it has the same. So
two windows are joined where both have the same run of tokens at the same characters:

* A tokenizer that first splits a text into words does so from left to right: it splits alike from a character on at
  which both windows begin a word, other than the right one's first.
* Where byte-pair encoding merges the whole text as one word, any shared token will do: a merge across one of its sides
  would have happened in the window that holds the characters on both sides of it.

Windows without such a place get a longer overlap, up to the whole text. Other tokenizers get the whole text at once.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.uint32]
# Told how many of how many characters are done.
OnProgress = Callable[[int, int], None]

WINDOW_CHARACTERS = 1 << 16
OVERLAP_CHARACTERS = 1 << 10
# Windows that are tokenised in one call hold about this much together.
BATCH_CHARACTERS = 1 << 19
# How many times longer the overlap gets where windows cannot be joined.
GROWTH = 4
# Longer than the words in any one added token, which a window may hold a part of.
RUN_TOKENS = 8

# Whatever a tokenizer splits texts at, this text has it.
_SPLITS = "A b1 -c.\r\n\t'd 中é_"


def token_ids(
    tokenizer: Any,
    text: str,
    on_progress: OnProgress = lambda done, total: None,
    *,
    window: int = WINDOW_CHARACTERS,
    overlap: int = OVERLAP_CHARACTERS,
) -> Ids:
    """Tokenise a text; nothing is added to it, and what looks like a special token in it is text.

    Args:
        tokenizer: one of `transformers`. A slow one gets the text in one call.
        text: the text.
        on_progress: told of progress.
        window: characters of a window.
        overlap: characters that two windows share at first; less than a window.

    Returns:
        The ids `[tokens]` of the whole text.
    """
    if len(text) <= window or not _can_join(tokenizer):
        on_progress(0, len(text))
        ids = tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"]
        on_progress(len(text), len(text))
        return np.array(ids, dtype=np.uint32)
    joined = _Joined(_splits(tokenizer))
    end = 0
    joins = True
    while end < len(text):
        on_progress(end, len(text))
        # Windows after one that cannot be joined are lost, so the next one is tried alone.
        count = max(BATCH_CHARACTERS // window, 1) if joins else 1
        spans = list(islice(_spans(end, len(text), window, overlap), count))
        for (first, last), tokens in zip(spans, _tokens(tokenizer, text, spans), strict=True):
            joins = joined.append(tokens, first)
            if not joins:
                overlap *= GROWTH
                window = max(window, 2 * overlap)
                break
            end = last
    on_progress(end, len(text))
    return joined.ids()


@dataclass(frozen=True)
class _Tokens:
    """Some tokens: ids `[tokens]`, their characters in the text `[tokens, 2]`, and which of them begin a word."""

    ids: Ids
    characters: NDArray[np.int64]
    heads: NDArray[np.bool_]

    def __getitem__(self, part: slice) -> "_Tokens":
        return _Tokens(self.ids[part], self.characters[part], self.heads[part])

    def __len__(self) -> int:
        return len(self.ids)

    def __add__(self, other: "_Tokens") -> "_Tokens":
        return _Tokens(
            np.concatenate((self.ids, other.ids)),
            np.concatenate((self.characters, other.characters)),
            np.concatenate((self.heads, other.heads)),
        )


class _Joined:
    """The tokens of the windows so far.

    Args:
        in_words: join at the beginning of a word only.
    """

    def __init__(self, in_words: bool) -> None:
        self._in_words = in_words
        self._parts: list[_Tokens] = []

    def ids(self) -> Ids:
        return np.concatenate([part.ids for part in self._parts])

    def append(self, tokens: _Tokens, first: int) -> bool:
        """Join a window that begins at a character; False where the overlap is too short, then nothing is changed."""
        if first == 0:
            self._parts = [tokens]
            return True
        if not len(tokens):
            return False
        while len(self._parts) > 1 and (not len(self._parts[-1]) or self._parts[-1].characters[0, 0] > first):
            right = self._parts.pop()
            self._parts[-1] += right
        left = self._parts[-1]
        shared = int(np.searchsorted(left.characters[:, 0], first))
        cut = self._cut(left[shared:], tokens)
        if cut is None:
            return False
        self._parts[-1] = left[: shared + cut[0]]
        self._parts.append(tokens[cut[1] :])
        return True

    def _cut(self, left: _Tokens, right: _Tokens) -> tuple[int, int] | None:
        """The same place in both, with the same tokens after it."""
        left_at, right_at = self._places(left), self._places(right)
        # Of tokens that begin at the same character, this takes the first.
        _, left_common, right_common = np.intersect1d(
            left.characters[left_at, 0], right.characters[right_at, 0], return_indices=True
        )
        left_at, right_at = left_at[left_common], right_at[right_common]
        same = np.ones(len(left_at), dtype=bool)
        for step in range(RUN_TOKENS):
            same &= left.ids[left_at + step] == right.ids[right_at + step]
            same &= (left.characters[left_at + step] == right.characters[right_at + step]).all(axis=1)
        found = np.flatnonzero(same)
        if not len(found):
            return None
        middle = found[len(found) // 2]
        return int(left_at[middle]), int(right_at[middle])

    def _places(self, tokens: _Tokens) -> NDArray[np.intp]:
        """Tokens where windows may be joined, other than the first, with room for a run."""
        places = np.flatnonzero(tokens.heads) if self._in_words else np.arange(len(tokens))
        return places[(places > 0) & (places <= len(tokens) - RUN_TOKENS)]


def _spans(end: int, characters: int, window: int, overlap: int) -> Iterator[tuple[int, int]]:
    """The windows that are left of a text which is done up to `end`."""
    while end < characters:
        first = max(end - overlap, 0)
        end = min(first + window, characters)
        yield first, end


def _tokens(tokenizer: Any, text: str, spans: Sequence[tuple[int, int]]) -> Iterator[_Tokens]:
    batch = tokenizer(
        [text[first:last] for first, last in spans],
        add_special_tokens=False,
        split_special_tokens=True,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,
    )
    for (first, _), encoding in zip(spans, batch.encodings, strict=True):
        characters = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2) + first
        words = np.array([-1 if word is None else word for word in encoding.word_ids], dtype=np.int64)
        heads = np.diff(words, prepend=-1) != 0
        yield _Tokens(np.array(encoding.ids, dtype=np.uint32), characters, heads)


def _can_join(tokenizer: Any) -> bool:
    """Whether windows of this tokenizer can be joined; only its Rust versions tell where their tokens are."""
    if not tokenizer.is_fast:
        return False
    return _splits(tokenizer) or type(tokenizer.backend_tokenizer.model).__name__ == "BPE"


def _splits(tokenizer: Any) -> bool:
    """Whether a tokenizer splits a text into words first."""
    pre_tokenizer = tokenizer.backend_tokenizer.pre_tokenizer
    return pre_tokenizer is not None and len(pre_tokenizer.pre_tokenize_str(_SPLITS)) > 1
