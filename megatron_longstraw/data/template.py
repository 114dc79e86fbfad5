"""From a prompt as its file has it to token ids: tokenizer, chat template, limits."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from megatron_longstraw.data.rows import Place

Overlong = Literal["error", "truncate_left", "drop"]
Text = str | list[dict[str, str]]


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

    def prompt(self, prompt: Text | Tensor, place: Place, key: str) -> Tensor | None:
        """Encode a prompt.

        Args:
            prompt: a text, chat messages (through the chat template, which opens the answer), or ids.
            place: where it stands.
            key: its column.

        Returns:
            `[prompt_tokens]` int64; None where the prompt is too long and too long ones are dropped.
        """
        ids = prompt if isinstance(prompt, Tensor) else self.ids(self._tokenize(prompt, place, key), place, key)
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
        low, high = min(ids), max(ids)
        if low < 0 or high >= self.vocabulary_size:
            wrong = low if low < 0 else high
            allowed = f"0 to {self.vocabulary_size - 1}"
            raise place.error(f"token id {wrong} is outside the vocabulary", key=key, allowed=allowed)
        return torch.tensor(ids, dtype=torch.int64)

    def _tokenize(self, prompt: Text, place: Place, key: str) -> list[int]:
        tokenizer = self._require_tokenizer(place, key)
        if not isinstance(prompt, str) and tokenizer.chat_template is None:
            raise place.error("chat messages, but the tokenizer has no chat template", key=key, allowed="a text")
        try:
            if isinstance(prompt, str):
                return tokenizer(prompt, verbose=False)["input_ids"]
            # An assistant's message at the end has been begun for the policy, which goes on with it.
            begun = prompt[-1]["role"] == "assistant"
            return tokenizer.apply_chat_template(
                prompt,
                add_generation_prompt=not begun,
                continue_final_message=begun,
                return_dict=False,
                tokenizer_kwargs={"verbose": False},
            )
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


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _kind(value: object) -> str:
    return "null" if value is None else f"of the type {type(value).__name__}"
