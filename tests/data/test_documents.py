"""Text files in prompts."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from byte_tokenizer import BOS, END, byte_tokenizer
from pyarrow import parquet

from megatron_longstraw.data.documents import Documents
from megatron_longstraw.data.prompts import PromptFile
from megatron_longstraw.data.recorded import RecordedFile
from megatron_longstraw.data.template import Encoder
from megatron_longstraw.data.token_cache import TokenCache
from megatron_longstraw.errors import InputError
from megatron_longstraw.types import Prompt

TOKENIZER = byte_tokenizer()


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def documents(tokenizer: Any = TOKENIZER, *, anywhere: bool = False) -> Documents:
    tokens = None if tokenizer is None else TokenCache(tokenizer)
    return Documents(tokens, key="documents", anywhere=anywhere)


def prompts_of(path: Path, tokenizer: Any = TOKENIZER, *, anywhere: bool = False, **limits: Any) -> PromptFile:
    return PromptFile(path, Encoder(tokenizer, 300, **limits), "prompt", documents(tokenizer, anywhere=anywhere))


def write(folder: Path, *rows: dict[str, object], **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.txt").write_bytes(text.encode())
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path: Path, row: int = 0, **settings: Any) -> Prompt:
    prompt = prompts_of(path, **settings).read(row)
    assert prompt is not None
    return prompt


def shown(prompt: Prompt) -> str:
    return TOKENIZER.decode(prompt.ids.tolist())


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize(
    ("text", "names", "expected"),
    [
        ("Why?", ["a.txt"], "<bos>one\n\nWhy?"),
        ("Why?", "a.txt", "<bos>one\n\nWhy?"),
        ("Why?", ["b.txt", "a.txt", "b.txt"], "<bos>two\r\n\n\none\n\ntwo\r\n\n\nWhy?"),
        ("Text: {documents}. Why?", ["a.txt", "b.txt"], "<bos>Text: one\n\ntwo\r\n. Why?"),
        ("{documents}", ["a.txt"], "<bos>one"),
        ("Why {documents}?", [], "<bos>Why {documents}?"),
        ("Why {documents}?", None, "<bos>Why {documents}?"),
    ],
)
def test_documents_stand_at_the_mark_or_before_the_text(
    tmp_path: Path, text: str, names: object, expected: str
) -> None:
    path = write(tmp_path, {"prompt": text, "documents": names}, a="one", b="two\r\n")
    assert shown(read(path)) == expected


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (user("Why?"), "user\none\n\nWhy?"),
        (user(" {documents} Why?"), "user\none Why?"),
        (user(""), "user\none"),
        (
            [{"role": "system", "content": "Read."}, *user("Why?")],
            "system\nRead.<|im_end|>\n<|im_start|>user\none\n\nWhy?",
        ),
        (
            [{"role": "system", "content": "Read {documents}."}, *user("Why?")],
            "system\nRead one.<|im_end|>\n<|im_start|>user\nWhy?",
        ),
        ([{"role": "system", "content": "Read."}], "system\none\n\nRead."),
    ],
)
def test_documents_stand_in_a_message(tmp_path: Path, messages: list[dict[str, str]], expected: str) -> None:
    path = write(tmp_path, {"prompt": messages, "documents": ["a.txt"]}, a="one")
    assert shown(read(path)) == f"<bos><|im_start|>{expected}<|im_end|>\n<|im_start|>assistant\n"


def test_an_answer_that_is_begun_goes_on_after_documents(tmp_path: Path) -> None:
    messages = [*user("Why?"), {"role": "assistant", "content": "Since {documents}"}]
    path = write(tmp_path, {"prompt": messages, "documents": ["a.txt"]}, a="one")
    assert shown(read(path)).endswith("<|im_start|>assistant\nSince one")


def test_a_documents_text_is_never_a_control_token(tmp_path: Path) -> None:
    path = write(tmp_path, {"prompt": user("<|im_end|>"), "documents": ["a.txt"]}, a="<|im_end|><bos>")
    prompt = read(path)
    assert shown(prompt).startswith("<bos><|im_start|>user\n<|im_end|><bos>\n\n<|im_end|><|im_end|>\n")
    ids = prompt.ids.tolist()
    # The message's own ones are what the template and the tokenizer make of them; so are they after the document.
    assert (ids.count(END), ids.count(BOS)) == (2, 1)
    assert read(write(tmp_path, {"prompt": "<bos>"})).ids.tolist() == [BOS, BOS]


def test_the_reward_sees_the_rows_own_prompt(tmp_path: Path) -> None:
    path = write(tmp_path, {"prompt": user("Why?"), "documents": ["a.txt"], "answer": 3}, a="one")
    prompt = read(path)
    assert prompt.text == user("Why?")
    assert prompt.columns == {"documents": ["a.txt"], "answer": 3}


def test_limits_count_documents(tmp_path: Path) -> None:
    path = write(tmp_path, {"prompt": "Why?", "documents": ["a.txt"]}, a="one")
    assert shown(read(path, max_prompt_tokens=6, overlong="truncate_left")) == "\n\nWhy?"
    assert prompts_of(path, max_prompt_tokens=9, overlong="drop").read(0) is None
    with pytest.raises(InputError, match="prompt: has 10 tokens"):
        read(path, max_prompt_tokens=9)


def test_ids_of_a_document_outside_the_models_vocabulary_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, {"prompt": "Why?", "documents": ["a.txt"]}, a="é")
    prompts = PromptFile(path, Encoder(TOKENIZER, BOS + 1), "prompt", documents())
    assert prompts.read(0) is not None
    with pytest.raises(InputError, match="token id 256 is outside the vocabulary"):
        PromptFile(path, Encoder(TOKENIZER, BOS), "prompt", documents()).read(0)


def test_parquet_names_documents_too(tmp_path: Path) -> None:
    write(tmp_path, a="one")
    rows = [{"prompt": user("Why?"), "documents": ["a.txt"]}, {"prompt": user("How?"), "documents": None}]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "prompts.parquet")
    assert "one\n\nWhy?" in shown(read(tmp_path / "prompts.parquet"))
    assert "user\nHow?" in shown(read(tmp_path / "prompts.parquet", 1))


def test_recorded_prompts_have_documents_and_ids_win(tmp_path: Path) -> None:
    responses = [{"ids": [1], "reward": 1.0}]
    path = write(
        tmp_path,
        {"prompt": "Why?", "documents": ["a.txt"], "responses": responses},
        {"prompt": "Why?", "prompt_ids": [7], "documents": ["gone.txt"], "responses": responses},
        a="one",
    )
    groups = RecordedFile(path, Encoder(TOKENIZER, 300), documents())
    first, second = groups.read(0), groups.read(1)
    assert first is not None
    assert second is not None
    assert shown(first.prompt) == "<bos>one\n\nWhy?"
    assert second.prompt.ids.tolist() == [7]


def test_a_folder_inside_and_a_way_back_are_inside(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "b.txt").write_text("two")
    names = ["deep/b.txt", "deep/../a.txt", str(tmp_path / "a.txt")]
    path = write(tmp_path, {"prompt": "Why?", "documents": names}, a="one")
    assert shown(read(path)) == "<bos>two\n\none\n\none\n\nWhy?"


@pytest.mark.parametrize("way", ["../out.txt", "link.txt", "absolute"])
def test_a_file_outside_the_folder_needs_the_key(tmp_path: Path, way: str) -> None:
    outside, folder = tmp_path / "out.txt", tmp_path / "in"
    folder.mkdir()
    outside.write_text("one")
    (folder / "link.txt").symlink_to(outside)
    name = str(outside) if way == "absolute" else way
    path = write(folder, {"prompt": "How?"}, {"prompt": "Why?", "documents": [name]})
    with pytest.raises(InputError) as caught:
        prompts_of(path)
    message = str(caught.value)
    assert message.startswith(f"{path}:2: documents: {name!r} lies outside the folder of the data file")
    assert "data.documents_anywhere" in message
    assert shown(read(path, 1, anywhere=True)) == "<bos>one\n\nWhy?"


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["gone.txt"], "documents: 'gone.txt' does not exist"),
        (["."], "documents: '.' is not a file"),
        (["empty.txt"], "documents: 'empty.txt' is empty"),
        (["a\0b"], "documents: 'a\\x00b' cannot be read"),
        (["loop"], "documents: 'loop' cannot be read"),
        (["x" * 300], f"documents: '{'x' * 300}' cannot be read"),
        (3, "documents: is not a list of names"),
        ({"a.txt": 1}, "documents: is not a list of names"),
        (["a.txt", 3], "documents: is not a list of names"),
    ],
)
def test_bad_documents_are_named_when_the_file_is_opened(tmp_path: Path, names: object, problem: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    path = write(tmp_path, {"prompt": "How?"}, {"prompt": "Why?", "documents": names}, a="one", empty="")
    with pytest.raises(InputError) as caught:
        prompts_of(path)
    assert str(caught.value).startswith(f"{path}:2: {problem}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"prompt": "{documents} {documents}"}, "prompt: has 2 marks {documents}"),
        ({"prompt": [*user("{documents}"), *user("{documents}")]}, "prompt: has 2 marks {documents}"),
        ({"prompt_ids": [1]}, "documents beside prompt_ids"),
    ],
)
def test_rows_that_do_not_say_where_documents_go_are_refused(
    tmp_path: Path, row: dict[str, object], problem: str
) -> None:
    path = write(tmp_path, row | {"documents": ["a.txt"]}, a="one")
    with pytest.raises(InputError) as caught:
        prompts_of(path)
    assert str(caught.value).startswith(f"{path}:1: {problem}")
    assert prompts_of(write(tmp_path, row)).read(0) is not None


def test_a_file_that_is_no_text_is_refused_when_it_is_read(tmp_path: Path) -> None:
    path = write(tmp_path, {"prompt": "Why?", "documents": ["a.txt"]})
    (tmp_path / "a.txt").write_bytes(b"one\xff")
    with pytest.raises(InputError, match=r"prompts.jsonl:1: documents: .*a.txt is not UTF-8: .* at byte 3"):
        read(path)


def test_a_file_that_went_away_is_refused_when_it_is_read(tmp_path: Path) -> None:
    prompts = prompts_of(write(tmp_path, {"prompt": "Why?", "documents": ["a.txt"]}, a="one"))
    (tmp_path / "a.txt").unlink()
    with pytest.raises(InputError, match=r"prompts.jsonl:1: documents: .*a.txt cannot be read"):
        prompts.read(0)


def test_documents_without_a_tokenizer_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, {"prompt": "Why?", "documents": ["a.txt"]}, a="one")
    with pytest.raises(InputError, match="has no tokenizer"):
        read(path, tokenizer=None)


def test_a_template_that_leaves_documents_out_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, {"prompt": user("Why?"), "documents": ["a.txt"]}, a="one")
    with pytest.raises(InputError, match="shows the documents 0 times, not once"):
        read(path, tokenizer=byte_tokenizer("hello"))
