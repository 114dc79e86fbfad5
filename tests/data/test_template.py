"""From texts and messages to ids."""

import pytest
from word_tokenizer import PLACE, WORDS, word_tokenizer

from megatron_longstraw.data.template import Encoder, Overlong, Text
from megatron_longstraw.errors import InputError

UNKNOWN, BOS, USER, ASSISTANT, A, B, C, D = range(len(WORDS))


def encoder(max_prompt_tokens: int | None = None, overlong: Overlong = "error") -> Encoder:
    return Encoder(word_tokenizer(), len(WORDS), max_prompt_tokens, overlong)


def ids(prompt: Text, **limits: object) -> list[int] | None:
    encoded = encoder(**limits).prompt(prompt, PLACE, "prompt")  # type: ignore[arg-type]
    return None if encoded is None else encoded.tolist()


def test_a_text_has_the_tokenizers_own_special_tokens() -> None:
    assert ids("a b") == [BOS, A, B]


def test_messages_go_through_the_chat_template_which_opens_the_answer() -> None:
    assert ids([{"role": "user", "content": "a b"}]) == [USER, A, B, ASSISTANT]


def test_a_begun_answer_is_continued() -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert ids(messages) == [USER, A, ASSISTANT, B]


def test_a_response_gets_nothing_added() -> None:
    assert encoder().response("c d", PLACE, "text").tolist() == [C, D]


def test_a_prompt_of_exactly_the_limit_is_not_too_long() -> None:
    assert ids("a b", max_prompt_tokens=3) == [BOS, A, B]


def test_truncating_on_the_left_keeps_the_end() -> None:
    assert ids("a b c d", max_prompt_tokens=3, overlong="truncate_left") == [B, C, D]


def test_a_prompt_that_is_too_long_may_be_dropped() -> None:
    assert ids("a b c d", max_prompt_tokens=3, overlong="drop") is None


def test_a_prompt_that_is_too_long_is_an_error_with_its_place() -> None:
    with pytest.raises(InputError, match=r"^file.jsonl:1: prompt: has 5 tokens \(allowed: at most 3"):
        ids("a b c d", max_prompt_tokens=3)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ([4, 8], "token id 8 is outside the vocabulary (allowed: 0 to 7)"),
        ([-1], "token id -1 is outside the vocabulary (allowed: 0 to 7)"),
        ([10**30], f"token id {10**30} is outside"),
        ([], "is empty"),
        ([1.0], "is not a list of token ids"),
        ([True], "is not a list of token ids"),
        ("4", "is not a list of token ids"),
    ],
)
def test_wrong_ids_are_refused(wrong: object, problem: str) -> None:
    with pytest.raises(InputError) as caught:
        encoder().ids(wrong, PLACE, "prompt_ids")  # type: ignore[arg-type]
    assert str(caught.value).startswith(f"file.jsonl:1: prompt_ids: {problem}")


def test_a_tokenizer_that_knows_more_than_the_model_is_refused() -> None:
    with pytest.raises(InputError, match="token id 7 is outside the vocabulary"):
        Encoder(word_tokenizer(), vocabulary_size=7).prompt("d", PLACE, "prompt")


def test_a_text_without_a_tokenizer_is_refused() -> None:
    with pytest.raises(InputError, match=r"no tokenizer \(allowed: token ids\)"):
        Encoder(None, 8).prompt("a", PLACE, "prompt")


@pytest.mark.parametrize(
    ("template", "problem"),
    [(None, "no chat template"), ("{{ raise_exception('no user') }}", "tokenised: no user")],
)
def test_messages_that_the_template_cannot_take_are_refused(template: str | None, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        Encoder(word_tokenizer(template), 8).prompt([{"role": "user", "content": "a"}], PLACE, "prompt")


@pytest.mark.parametrize("prompt", ["\ud800", [{"role": "user", "content": "\ud800"}]])
def test_half_a_surrogate_pair_is_refused(prompt: Text) -> None:
    with pytest.raises(InputError, match=r"^file.jsonl:1: prompt: cannot be tokenised"):
        ids(prompt)
    with pytest.raises(InputError, match=r"^file.jsonl:1: text: cannot be tokenised"):
        encoder().response("\ud800", PLACE, "text")
