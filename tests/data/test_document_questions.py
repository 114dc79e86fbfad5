"""Questions about documents: the same for the same arguments, sets that share nothing, an answer that is there."""

import json
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from tools import make_document_questions

MODEL = Path(__file__).parents[2] / "models" / "smollm2"
ARGUMENTS = ("--train", "6", "--held-out", "3", "--facts", "4", "--words", "1600")


@pytest.fixture
def make(tmp_path, monkeypatch):
    def run(name="questions", *arguments):
        argv = ["make_document_questions.py", "--out", str(tmp_path / name), *ARGUMENTS, *arguments]
        monkeypatch.setattr(sys, "argv", argv)
        make_document_questions.main()
        return tmp_path / name

    return run


def rows(folder, name):
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def documents(folder, name):
    return [(folder / row["documents"][0]).read_text(encoding="utf-8") for row in rows(folder, name)]


def files(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_same_arguments_make_the_same_files_and_another_seed_others(make):
    first = files(make("first"))
    assert len(first) == 2 + 6 + 3
    assert files(make("again")) == first
    other = files(make("other", "--seed", "2"))
    assert set(other) == set(first)
    assert all(other[name] != content for name, content in first.items())


def test_the_answer_stands_in_its_document_once_beside_as_many_others(make):
    folder = make()
    for name, count in (("train", 6), ("held_out", 3)):
        assert len(rows(folder, name)) == count
        for row, text in zip(rows(folder, name), documents(folder, name), strict=True):
            (message,) = row["prompt"]
            place = message["content"].split("access code of the ")[1].split("?")[0]
            assert text.count(f"The access code of the {place} is {row['answer']}.") == 1
            assert text.count(row["answer"]) == 1
            assert text.count("The access code of the ") == 4
            assert len(text.split()) >= 1600


def test_the_sets_share_no_paragraph_no_place_and_no_code(make):
    folder = make()
    train, held_out = (
        {paragraph for text in documents(folder, name) for paragraph in text.strip().split("\n\n")}
        for name in ("train", "held_out")
    )
    assert not train & held_out
    facts = [[p.split() for p in paragraphs if "access code" in p] for paragraphs in (train, held_out)]
    places = [{tuple(words[5:-2]) for words in found} for found in facts]
    codes = [{words[-1] for words in found} for found in facts]
    assert len(codes[0]) == 6 * 4
    assert len(codes[1]) == 3 * 4
    assert not codes[0] & codes[1]
    assert not places[0] & places[1]


@pytest.mark.skipif(not MODEL.is_dir(), reason="needs models/smollm2, from tools/get_smollm2.py")
def test_prompts_have_two_thousand_tokens_of_smollm2(make, tmp_path):
    folder = make()
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    for row, text in zip(rows(folder, "train"), documents(folder, "train"), strict=True):
        content = row["prompt"][0]["content"].replace("{documents}", text)
        ids = tokenizer.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
        assert 2000 <= len(ids["input_ids"]) <= 2600
