"""From a prompt as its file has it to token ids: tokenizer, chat template, limits."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from megatron_longstraw.data.documents import SEPARATOR, Text, unused_word, with_documents
from megatron_longstraw.data.rows import Place
from megatron_longstraw.data.windows import Ids

Overlong = Literal["error", "truncate_left", "drop"]


@dataclass(frozen=True)
class Encoder:
    """Turns texts into ids and checks ids.

    Args:
        tokenizer: one of `transformers`; None where the model has none, then only ids are accepted.
        vocabulary_size: ids are below it.
        max_prompt_tokens: the longest prompt; None sets no limit.
        overlong: a longer one is an error, keeps only its last `max_prompt_tokens` tokens, or is dropped.
    """

    tokenizer: Any
    vocabulary_size: int
    max_prompt_tokens: int | None = None
    overlong: Overlong = "error"

    def prompt(self, prompt: Text | Tensor, place: Place, key: str, documents: Sequence[Ids] = ()) -> Tensor | None:
        """Encode a prompt.

        Args:
            prompt: a text, chat messages (through the chat template, which opens the answer), or ids.
            place: where it stands.
            key: its column.
            documents: ids `[document_tokens]` of each document to put into the text or the messages.

        Returns:
            `[prompt_tokens]` int64; None where the prompt is too long and too long ones are dropped.
        """
        if isinstance(prompt, Tensor):
            ids = prompt
        elif documents:
            ids = self._around(prompt, documents, place, key)
        else:
            ids = self.ids(self._tokenize(prompt, place, key), place, key)
        limit = self.max_prompt_tokens
        if limit is None or len(ids) <= limit:
            return ids
        if self.overlong == "error":
            allowed = f"at most {limit}, data.max_prompt_tokens; or another data.overlong"
            raise place.error(f"has {len(ids)} tokens", key=key, allowed=allowed)
        return ids[-limit:] if self.overlong == "truncate_left" else None

    def response(self, text: str, place: Place, key: str) -> Tensor:
        """Encode a response `[response_tokens]` int64, with nothing added before or after it."""
        tokenizer = self._require_tokenizer(place, key)
        try:
            ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        # Half of a surrogate pair is a text of Python's, but not of a tokenizer.
        except TypeError as error:
            raise place.error(f"cannot be tokenised: {_one_line(error)}", key=key) from error
        return self.ids(ids, place, key)

    def ids(self, ids: Sequence[int], place: Place, key: str) -> Tensor:
        """Check token ids and return them as `[tokens]` int64, at least one."""
        if not isinstance(ids, list) or any(type(token) is not int for token in ids):
            raise place.error("is not a list of token ids", key=key, allowed="[int, ...]")
        if not ids:
            raise place.error("is empty", key=key, allowed="at least one token")
        self._check_range(min(ids), max(ids), place, key)
        return torch.tensor(ids, dtype=torch.int64)

    def _check_range(self, low: int, high: int, place: Place, key: str) -> None:
        if low < 0 or high >= self.vocabulary_size:
            wrong = low if low < 0 else high
            allowed = f"0 to {self.vocabulary_size - 1}"
            raise place.error(f"token id {wrong} is outside the vocabulary", key=key, allowed=allowed)

    def _tokenize(self, prompt: Text, place: Place, key: str) -> list[int]:
        with self._refusals(prompt, place, key) as tokenizer:
            if isinstance(prompt, str):
                return tokenizer(prompt, verbose=False)["input_ids"]
            return tokenizer.apply_chat_template(
                prompt, return_dict=False, tokenizer_kwargs={"verbose": False}, **_ending(prompt)
            )

    def _around(self, prompt: Text, documents: Sequence[Ids], place: Place, key: str) -> Tensor:
        """Tokenise what stands around documents, each piece by itself; `[prompt_tokens]` int64."""
        word = unused_word(prompt)
        marked = with_documents(prompt, word)
        with self._refusals(prompt, place, key) as tokenizer:
            if isinstance(marked, str):
                text, (first, last) = marked, _added_around(tokenizer)
            else:
                text, first, last = tokenizer.apply_chat_template(marked, tokenize=False, **_ending(marked)), [], []
            pieces = text.split(word)
            if len(pieces) != 2:
                raise ValueError(f"the chat template shows the documents {len(pieces) - 1} times, not once")
            before, after, between = (_plain_ids(tokenizer, piece) for piece in (*pieces, SEPARATOR))
        parts: list[Any] = [first, before]
        for document in documents:
            parts.extend((document, between))
        parts[-1:] = [after, last]
        ids = torch.from_numpy(np.concatenate([np.asarray(part, dtype=np.int64) for part in parts]))
        self._check_range(int(ids.min()), int(ids.max()), place, key)
        return ids

    @contextmanager
    def _refusals(self, prompt: Text, place: Place, key: str) -> Iterator[Any]:
        """Give the tokenizer, and report what it and the chat template refuse."""
        tokenizer = self._require_tokenizer(place, key)
        if not isinstance(prompt, str) and tokenizer.chat_template is None:
            raise place.error("chat messages, but the tokenizer has no chat template", key=key, allowed="a text")
        try:
            yield tokenizer
        # Templates are programs of the model's author: they refuse messages by whatever error they like.
        except Exception as error:
            raise place.error(f"cannot be tokenised: {_one_line(error)}", key=key) from error

    def _require_tokenizer(self, place: Place, key: str) -> Any:
        if self.tokenizer is None:
            raise place.error("is text, but the model's folder has no tokenizer", key=key, allowed="token ids")
        return self.tokenizer


def check_text(value: object, place: Place, key: str) -> Text:
    """Check that a prompt is a text or a list of chat messages, and not empty."""
    if isinstance(value, str):
        if not value:
            raise place.error("is empty", key=key, allowed="a text or chat messages")
        return value
    if not isinstance(value, list):
        raise place.error(f"is {_kind(value)}", key=key, allowed="a text or chat messages")
    if not value:
        raise place.error("is empty", key=key, allowed="a text or chat messages")
    for message in value:
        texts = isinstance(message, dict) and all(isinstance(message.get(name), str) for name in ("role", "content"))
        if not texts:
            allowed = '{"role": "user", "content": "..."}'
            raise place.error("holds what is not a chat message", key=key, allowed=allowed)
    return value


def _ending(messages: list[dict[str, str]]) -> dict[str, bool]:
    """What the chat template puts at the end."""
    # An assistant's message at the end has been begun for the policy, which goes on with it.
    begun = messages[-1]["role"] == "assistant"
    return {"add_generation_prompt": not begun, "continue_final_message": begun}


def _plain_ids(tokenizer: Any, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"] if text else []


def _added_around(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The special tokens that a tokenizer puts before and after a text."""
    whole, plain = tokenizer("a", verbose=False)["input_ids"], _plain_ids(tokenizer, "a")
    start = next(i for i in range(len(whole)) if whole[i : i + len(plain)] == plain)
    return whole[:start], whole[start + len(plain) :]


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _kind(value: object) -> str:
    return "null" if value is None else f"of the type {type(value).__name__}"
