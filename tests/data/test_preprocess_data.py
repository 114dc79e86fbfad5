"""The tool that writes token ids for reuse."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from byte_tokenizer import END, byte_tokenizer
from kinds_of_tokenizers import corpus, tokenizer_of
from megatron.core.datasets.indexed_dataset import IndexedDataset
from pyarrow import parquet

from megatron_longstraw.data.documents import Documents
from megatron_longstraw.data.prompts import PromptFile
from megatron_longstraw.data.template import Encoder
from megatron_longstraw.data.token_cache import TokenCache
from tools import preprocess_data
from tools.preprocess_data import main

TOKENIZER = byte_tokenizer()
TOKENIZER.eos_token = "<|im_end|>"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    TOKENIZER.save_pretrained("hf")


def write(name: str, *rows: dict[str, object]) -> Path:
    path = Path(name)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run(*arguments: str) -> None:
    assert main([*arguments, "--hf", "hf"]) == 0


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    try:
        status = main([*arguments, "--hf", "hf"])
    except SystemExit as stop:
        status = int(str(stop.code))
    assert status == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert not any("Traceback" in line for line in lines)
    return lines[-1].removeprefix("preprocess_data.py: ")


def documents_of(prefix: str) -> list[list[int]]:
    dataset = IndexedDataset(prefix)
    assert dataset.document_indices.tolist() == list(range(len(dataset) + 1))
    return [dataset[index].tolist() for index in range(len(dataset))]


def ids(text: str) -> list[int]:
    return TOKENIZER(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]


def test_texts_of_all_kinds_of_files_are_read_back(capsys: pytest.CaptureFixture[str]) -> None:
    write("a.jsonl", {"text": "one"}, {"text": ""}, {"text": None}, {"text": "two <|im_end|> é"})
    parquet.write_table(preprocess_data.pa.table({"text": ["three"]}), "b.parquet")
    Path("c.txt").write_bytes(b"four\r\n")
    run("--input", "a.jsonl", "b.parquet", "c.txt", "--output-prefix", "out/x", "--append-eod")
    texts = ["one", "two <|im_end|> é", "three", "four\r\n"]
    assert documents_of("out/x_text_document") == [[*ids(text), END] for text in texts]
    assert IndexedDataset("out/x_text_document").index.dtype == np.uint16
    tokens = sum(len(ids(text)) + 1 for text in texts)
    assert f"4 documents, {tokens} tokens in out/x_text_document.bin and .idx; 2 empty" in capsys.readouterr().out
    assert sorted(path.name for path in Path("out").iterdir()) == ["x_text_document.bin", "x_text_document.idx"]


def test_each_column_is_a_dataset_and_each_named_file_a_document() -> None:
    for name in ("one", "two"):
        Path(f"{name}.txt").write_text(name)
    write("a.jsonl", {"q": "Q1", "documents": ["one.txt", "two.txt"]}, {"q": "Q2", "documents": "two.txt"})
    run("--input", "a.jsonl", "--json-keys", "q", "documents", "--output-prefix", "x")
    assert documents_of("x_q_document") == [ids("Q1"), ids("Q2")]
    assert documents_of("x_documents_document") == [ids("one"), ids("two"), ids("two")]


def test_a_large_vocabulary_and_a_long_text(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = tokenizer_of("gpt_2")
    tokenizer.save_pretrained("hf")
    monkeypatch.setattr(type(tokenizer), "__len__", lambda self: 70_000)
    text = "\n".join(corpus() * 4)
    write("a.jsonl", {"text": text})
    run("--input", "a.jsonl", "--output-prefix", "x")
    assert len(text) > 1 << 17
    assert documents_of("x_text_document") == [tokenizer(text, add_special_tokens=False)["input_ids"]]
    assert IndexedDataset("x_text_document").index.dtype == np.int32


def test_prompts_with_ids_train_as_the_prompts_themselves(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The first two prompts fill a group.
    monkeypatch.setattr(preprocess_data, "GROUP_TOKENS", 60)
    Path("a.txt").write_text("one")
    rows: list[dict[str, Any]] = [
        {"prompt": [{"role": "user", "content": "Why?"}], "documents": ["a.txt"], "answer": "x", "extra": {"n": [1]}},
        {"prompt": [{"role": "user", "content": "How? {documents}"}], "answer": "y"},
        {"prompt": [{"role": "user", "content": "When?"}], "extra": {"n": [2, 3]}},
    ]
    write("a.jsonl", *rows)
    run("--input", "a.jsonl", "--prompt-ids-out", "out/p.parquet")
    own = PromptFile(
        "a.jsonl", Encoder(TOKENIZER, 300), "prompt", Documents(TokenCache(TOKENIZER), key="documents", anywhere=False)
    )
    kept = PromptFile("out/p.parquet", Encoder(None, 300), "prompt", Documents(None, key="documents", anywhere=False))
    assert len(kept) == 3
    tokens = 0
    for row, written in enumerate(rows):
        first, second = own.read(row), kept.read(row)
        assert first is not None
        assert second is not None
        assert first.ids.tolist() == second.ids.tolist()
        assert second.text == written["prompt"]
        assert second.columns == {"answer": written.get("answer"), "extra": written.get("extra")}
        tokens += len(first.ids)
    assert parquet.ParquetFile("out/p.parquet").num_row_groups == 2
    assert f"3 prompts, {tokens} tokens in out/p.parquet" in capsys.readouterr().out
    assert [path.name for path in Path("out").iterdir()] == ["p.parquet"]


def test_rows_of_ids_alone_can_be_written_too() -> None:
    write("a.jsonl", {"prompt_ids": [1, 2]}, {"prompt_ids": [3]})
    run("--input", "a.jsonl", "--prompt-ids-out", "p.parquet")
    assert parquet.read_table("p.parquet").to_pylist() == [{"prompt_ids": [1, 2]}, {"prompt_ids": [3]}]


def test_training_finds_the_ids_of_text_files_in_the_cache() -> None:
    Path("a.txt").write_text("one")
    write("a.jsonl", {"prompt": "Why?", "documents": ["a.txt"]})
    run("--input", "a.jsonl", "--json-keys", "documents", "--output-prefix", "x", "--token-cache", "kept")
    assert len(list(Path("kept").iterdir())) == 1
    TokenCache(TOKENIZER, "kept").ids(Path("a.txt"))
    assert len(list(Path("kept").iterdir())) == 1


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--input", "gone.jsonl", "--output-prefix", "x"], "gone.jsonl: there is no such file"),
        (["--input", "gone.txt", "--output-prefix", "x"], "gone.txt: there is no such file"),
        (
            ["--input", "a.jsonl", "--output-prefix", "x", "--json-keys", "body"],
            "a.jsonl:1: has no body; its columns are",
        ),
        (["--input", "a.jsonl", "--output-prefix", "x", "--json-keys", "n"], "a.jsonl:1: n: is not a text (allowed:"),
        (["--input", "a.jsonl", "--output-prefix", "x", "--json-keys", "half"], "a.jsonl:1: half: cannot be tokenised"),
        (["--input", "a.jsonl", "--output-prefix", "x", "--json-keys", "none"], "none: holds no text"),
        (
            ["--input", "a.jsonl", "--output-prefix", "x", "--json-keys", "documents"],
            "a.jsonl:1: documents: 'gone.txt'",
        ),
        (["--input", "b.txt", "--output-prefix", "x"], "b.txt: is not UTF-8"),
        (["--input", "b.txt", "--output-prefix", "x", "--json-keys", "body"], "--json-keys: b.txt is a plain text"),
        (["--input", "a.jsonl", "--output-prefix", "a.jsonl/x"], "a.jsonl/x_text_document.bin: cannot be written"),
        (["--input", "a.jsonl", "--prompt-ids-out", "x.parquet"], "a.jsonl:1: documents: 'gone.txt' does not exist"),
        (["--input", "c.jsonl", "--prompt-ids-out", "x.parquet"], "x.parquet: a column cannot be stored as parquet"),
        (["--input", "a.jsonl"], "error: nothing to write"),
        (["--input", "b.txt", "--prompt-ids-out", "x.parquet"], "error: --prompt-ids-out: a plain text is no prompt"),
        (["--input", "a.jsonl", "--prompt-ids-out", "x.json"], "error: --prompt-ids-out: x.json (allowed: a name that"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    capsys: pytest.CaptureFixture[str], arguments: list[str], problem: str
) -> None:
    row = {"text": "a", "n": 3, "half": "\ud800", "none": "", "documents": ["gone.txt"], "prompt": "Why?"}
    write("a.jsonl", row)
    write("c.jsonl", {"prompt": "Why?", "mixed": 3}, {"prompt": "Why?", "mixed": "text"})
    Path("b.txt").write_bytes(b"\xff")
    assert problem in refusal(capsys, *arguments)
    assert not list(Path().glob("x*"))


def test_a_folder_without_a_tokenizer_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for file in Path("hf").iterdir():
        file.unlink()
    assert "--hf: hf has no tokenizer" in refusal(capsys, "--input", "a.txt", "--output-prefix", "x")
    Path("hf").rmdir()
    assert "--hf: there is no folder hf" in refusal(capsys, "--input", "a.txt", "--output-prefix", "x")


def test_an_end_token_is_needed_to_append_it(capsys: pytest.CaptureFixture[str]) -> None:
    byte_tokenizer().save_pretrained("hf")
    Path("a.txt").write_text("one")
    problem = refusal(capsys, "--input", "a.txt", "--output-prefix", "x", "--append-eod")
    assert "--append-eod: the tokenizer has no end token" in problem
