"""What ends a response, wherever the folder says it, and damaged files as one line."""

import json
from types import SimpleNamespace

import pytest

from megatron_longstraw.errors import InputError
from megatron_longstraw.model.tokenizer import end_ids, read_tokenizer


def folder(tmp_path, generation):
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    return tmp_path


@pytest.mark.parametrize(
    ("generation", "config", "tokenizer", "expected"),
    [
        ({"eos_token_id": [4, 5]}, 3, 2, {4, 5}),
        ({"eos_token_id": 4}, 3, 2, {4}),
        ({"bos_token_id": 1}, [3, 6], 2, {3, 6}),
        (None, 0, 2, {0}),
        (None, None, 2, {2}),
        (None, None, None, set()),
    ],
)
def test_end_ids_come_from_the_first_that_names_them(tmp_path, generation, config, tokenizer, expected):
    hf_config, named = SimpleNamespace(eos_token_id=config), SimpleNamespace(eos_token_id=tokenizer)
    assert end_ids(folder(tmp_path, generation), hf_config, named) == expected


def test_a_damaged_generation_config_is_one_line(tmp_path):
    (tmp_path / "generation_config.json").write_text("{bad")
    with pytest.raises(InputError, match="cannot be read"):
        end_ids(tmp_path, SimpleNamespace(eos_token_id=None), None)


def test_a_damaged_tokenizer_is_one_line(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{bad")
    with pytest.raises(InputError, match="cannot be read"):
        read_tokenizer(tmp_path)


def test_a_folder_without_a_tokenizer_has_none(tmp_path):
    assert read_tokenizer(tmp_path) is None
