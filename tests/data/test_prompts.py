"""Files of prompts."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from word_tokenizer import WORDS, word_tokenizer

from megatron_longstraw.data.prompts import PromptFile
from megatron_longstraw.data.template import Encoder
from megatron_longstraw.errors import InputError


def encoder(**limits: Any) -> Encoder:
    return Encoder(word_tokenizer(), len(WORDS), **limits)


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def refusal(path: Path, **limits: Any) -> str:
    with pytest.raises(InputError) as caught:
        PromptFile(path, encoder(**limits))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_other_columns_are_kept_for_the_reward_function(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", {"prompt": "a b", "answer": "c", "extra": {"x": [1]}}, "", {"prompt": "c"})
    prompts = PromptFile(path, encoder())
    assert len(prompts) == 2
    first, second = prompts.read(0), prompts.read(1)
    assert first is not None
    assert second is not None
    assert (first.ids.tolist(), first.text) == ([1, 4, 5], "a b")
    assert first.columns == {"answer": "c", "extra": {"x": [1]}}
    # Blank lines are passed over, and counted.
    assert (first.source, second.source) == (f"{path}:1", f"{path}:3")


def test_ids_are_used_as_they_are(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", {"prompt_ids": [0, 7, 3]}, {"prompt_ids": [4], "prompt": "a b"})
    prompts = [PromptFile(path, encoder()).read(row) for row in (0, 1)]
    assert [(p.ids.tolist(), p.text, p.columns) for p in prompts if p] == [([0, 7, 3], None, {}), ([4], "a b", {})]


def test_the_prompts_column_may_have_another_name(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", {"question": "a", "prompt": "b"})
    prompt = PromptFile(path, encoder(), "question").read(0)
    assert prompt is not None
    assert (prompt.ids.tolist(), prompt.columns) == ([1, 4], {"prompt": "b"})


def test_a_parquet_file_of_verl_reads_as_it_is(tmp_path: Path) -> None:
    rows = [
        {
            "data_source": "x",
            "prompt": [{"role": "user", "content": text}],
            "reward_model": {"style": "rule", "ground_truth": text},
            "extra_info": {"index": index},
        }
        for index, text in enumerate(("a", "b", "c d"))
    ]
    path = tmp_path / "train.parquet"
    parquet.write_table(pa.Table.from_pylist(rows), path, row_group_size=2)
    prompts = PromptFile(path, encoder())
    assert len(prompts) == 3
    read = [prompts.read(row) for row in (2, 0)]
    assert [p.ids.tolist() for p in read if p] == [[2, 6, 7, 3], [2, 4, 3]]
    assert read[0] is not None
    assert read[0].text == [{"role": "user", "content": "c d"}]
    assert read[0].columns["reward_model"] == {"style": "rule", "ground_truth": "c d"}
    assert read[0].columns["extra_info"] == {"index": 2}


@pytest.mark.parametrize("kind", [pa.list_(pa.int32()), pa.list_(pa.int64()), pa.large_list(pa.uint16())])
def test_ids_in_a_parquet_file_are_used_as_they_are(tmp_path: Path, kind: pa.DataType) -> None:
    path = tmp_path / "p.parquet"
    ids = [[0, 7, 3], [4], None, [5, 6], [1]]
    table = pa.table({"prompt_ids": pa.array(ids, kind), "prompt": ["a", None, "a b", None, None]})
    parquet.write_table(table, path, row_group_size=2)
    prompts = PromptFile(path, encoder())
    read = [prompt.ids.tolist() for row in (4, 1, 3, 0, 2) if (prompt := prompts.read(row))]
    assert read == [[1], [4], [5, 6], [0, 7, 3], [1, 4, 5]]


def test_a_missing_id_in_a_parquet_file_is_refused(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"prompt_ids": [[4], [4, None]]}), tmp_path / "p.parquet")
    assert "p.parquet:2: prompt_ids: is not a list of token ids" in refusal(tmp_path / "p.parquet")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"prompt": "a"', "is not JSON: Expecting ',' delimiter at column 15"),
        ('["a"]', "is not a JSON object"),
        ({"text": "a"}, "has no prompt; its columns are text"),
        ({"prompt": ""}, "prompt: is empty"),
        ({"prompt": []}, "prompt: is empty"),
        ({"prompt": None}, "prompt: is null"),
        ({"prompt": 3}, "prompt: is of the type int"),
        ({"prompt": [{"role": "user"}]}, "prompt: holds what is not a chat message"),
        ({"prompt_ids": []}, "prompt_ids: is empty"),
        ({"prompt_ids": [1, 99]}, "prompt_ids: token id 99 is outside the vocabulary (allowed: 0 to 7)"),
    ],
)
def test_a_bad_line_is_named_when_the_file_is_opened(tmp_path: Path, line: object, problem: str) -> None:
    path = write(tmp_path / "p.jsonl", {"prompt": "a"}, line)
    assert refusal(path).startswith(f"{path}:2: {problem}")


def test_ids_that_are_too_long_are_named_when_the_file_is_opened(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", {"prompt_ids": [4, 5, 6]})
    assert refusal(path, max_prompt_tokens=2).startswith(f"{path}:1: prompt_ids: has 3 tokens")
    kept = PromptFile(path, encoder(max_prompt_tokens=2, overlong="truncate_left")).read(0)
    assert kept is not None
    assert kept.ids.tolist() == [5, 6]
    assert PromptFile(path, encoder(max_prompt_tokens=2, overlong="drop")).read(0) is None


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(b'{"prompt": "a"}\n{"prompt": "\xff"}\n')
    assert refusal(path).startswith(f"{path}:2: is not UTF-8")


@pytest.mark.parametrize(("name", "content"), [("p.jsonl", "is not JSON"), ("p.parquet", "is not parquet")])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, name: str, content: str) -> None:
    path = write(tmp_path / name, "hello")
    assert content in refusal(path)


def test_a_missing_and_an_empty_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    assert refusal(path) == f"{path}: there is no such file"
    path.write_text("\n")
    assert refusal(path) == f"{path}: holds no row"
