"""Token ids that are kept on disk."""

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from byte_tokenizer import byte_tokenizer
from kinds_of_tokenizers import tokenizer_of
from transformers import ByT5Tokenizer

from megatron_longstraw.data import token_cache
from megatron_longstraw.data.token_cache import TokenCache, default_folder, fingerprint
from megatron_longstraw.errors import InputError


class Counting:
    """A tokenizer that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0
        self._tokenizer = byte_tokenizer()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self._tokenizer(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "a.txt"
    path.write_bytes("one\r\ntwo é".encode())
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "made" / "tokens"


def decoded(ids: Any) -> str:
    return byte_tokenizer().decode(ids.tolist())


def test_ids_are_kept_for_other_processes(text: Path, folder: Path) -> None:
    first, second = Counting(), Counting()
    made = TokenCache(first, folder).ids(text)
    read = TokenCache(second, folder).ids(text)
    assert decoded(made) == decoded(read) == "one\r\ntwo é"
    assert (first.calls, second.calls) == (1, 0)
    assert read.dtype == np.uint32
    assert isinstance(read, np.memmap)
    assert not read.flags.writeable
    # One file, and none left half-written.
    assert [file.suffix for file in folder.iterdir()] == [".npy"]


def test_content_decides_not_the_name(text: Path, folder: Path) -> None:
    tokenizer = Counting()
    tokens = TokenCache(tokenizer, folder)
    tokens.ids(text)
    copy = text.with_name("b.txt")
    copy.write_bytes(text.read_bytes())
    tokens.ids(copy)
    assert tokenizer.calls == 1
    copy.write_text("three")
    assert decoded(tokens.ids(copy)) == "three"
    assert tokenizer.calls == 2


def test_an_unchanged_file_is_not_read_again(text: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = TokenCache(byte_tokenizer(), folder)
    tokens.ids(text)
    reads: list[Path] = []
    real = token_cache._content_hash
    monkeypatch.setattr(token_cache, "_content_hash", lambda path: reads.append(path) or real(path))
    assert decoded(tokens.ids(text)) == "one\r\ntwo é"
    assert reads == []
    # The same size, another time of change.
    text.write_bytes("ONE\r\ntwo é".encode())
    os.utime(text, ns=(1, 1))
    assert decoded(tokens.ids(text)) == "ONE\r\ntwo é"
    assert reads == [text]


def test_an_entry_that_went_away_is_made_again(text: Path, folder: Path) -> None:
    tokens = TokenCache(byte_tokenizer(), folder)
    tokens.ids(text)
    next(folder.iterdir()).unlink()
    assert decoded(tokens.ids(text)) == "one\r\ntwo é"
    assert len(list(folder.iterdir())) == 1


def damages() -> dict[str, Any]:
    return {
        "empty": lambda data: b"",
        "half of the header": lambda data: data[:40],
        "half": lambda data: data[:-8],
        "a bit of the ids": lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
        "a bit of the header": lambda data: data[:20] + bytes([data[20] ^ 64]) + data[21:],
        "a bracket of the header": lambda data: data.replace(b"}", b"{", 1),
        "zeros": lambda data: bytes(len(data)),
        "text": lambda data: b"hello",
        "archive": lambda data: b"PK\x03\x04" + data[4:],
    }


@pytest.mark.parametrize("damage", damages())
def test_a_damaged_entry_is_made_again_with_a_warning(text: Path, folder: Path, damage: str) -> None:
    TokenCache(byte_tokenizer(), folder).ids(text)
    entry = next(folder.iterdir())
    sound = entry.read_bytes()
    entry.write_bytes(damages()[damage](sound))
    with pytest.warns(UserWarning, match=f"{re.escape(str(entry))} is damaged"):
        assert decoded(TokenCache(byte_tokenizer(), folder).ids(text)) == "one\r\ntwo é"
    assert entry.read_bytes() == sound


def test_a_folder_that_cannot_be_written_is_a_warning(text: Path, tmp_path: Path) -> None:
    tokenizer = Counting()
    (tmp_path / "file").write_text("")
    tokens = TokenCache(tokenizer, tmp_path / "file" / "tokens")
    with pytest.warns(UserWarning, match=r"cannot be kept in .*/file/tokens: "):
        assert decoded(tokens.ids(text)) == "one\r\ntwo é"
    # It is tokenised once all the same.
    assert decoded(tokens.ids(text)) == "one\r\ntwo é"
    assert tokenizer.calls == 1


def test_a_stop_while_writing_leaves_no_entry(text: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(file: Any, array: Any) -> None:
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "save", stop)
    with pytest.raises(KeyboardInterrupt):
        TokenCache(byte_tokenizer(), folder).ids(text)
    assert list(folder.iterdir()) == []


def test_two_that_write_the_same_entry_both_do(text: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = np.save

    def save_after_another(file: Any, array: Any) -> None:
        monkeypatch.setattr(np, "save", real)
        file.write(b"begun")
        TokenCache(Counting(), folder).ids(text)
        file.seek(0)
        real(file, array)

    monkeypatch.setattr(np, "save", save_after_another)
    assert decoded(TokenCache(Counting(), folder).ids(text)) == "one\r\ntwo é"
    assert len(list(folder.iterdir())) == 1
    again = Counting()
    assert decoded(TokenCache(again, folder).ids(text)) == "one\r\ntwo é"
    assert again.calls == 0


def test_a_text_that_changes_while_it_is_read_is_kept_under_what_was_read(
    text: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = token_cache._content_hash

    def hash_then_change(path: Path) -> str:
        former = real(path)
        path.write_text("changed")
        return former

    monkeypatch.setattr(token_cache, "_content_hash", hash_then_change)
    assert decoded(TokenCache(byte_tokenizer(), folder).ids(text)) == "changed"
    monkeypatch.setattr(token_cache, "_content_hash", real)
    text.write_bytes("one\r\ntwo é".encode())
    assert decoded(TokenCache(byte_tokenizer(), folder).ids(text)) == "one\r\ntwo é"


def test_another_tokenizer_has_other_entries(text: Path, folder: Path) -> None:
    for kind in ("gpt_2", "words"):
        tokenizer = tokenizer_of(kind)
        ids = TokenCache(tokenizer, folder).ids(text)
        assert ids.tolist() == tokenizer("one\r\ntwo é", add_special_tokens=False)["input_ids"]
    assert len(list(folder.iterdir())) == 2


def test_the_fingerprint_covers_all_that_makes_ids() -> None:
    same = fingerprint(byte_tokenizer())
    assert fingerprint(byte_tokenizer("another template")) == same
    used = byte_tokenizer()
    used("one two three", split_special_tokens=True)
    used.backend_tokenizer.enable_truncation(2)
    used.backend_tokenizer.enable_padding(length=9)
    assert fingerprint(used) == same
    more = byte_tokenizer()
    more.add_tokens(["<tool>"])
    assert fingerprint(more) != same
    assert fingerprint(ByT5Tokenizer()) == fingerprint(ByT5Tokenizer())
    assert fingerprint(ByT5Tokenizer()) != fingerprint(ByT5Tokenizer(extra_ids=7))


def test_a_tokenizer_without_places_gets_the_text_whole(text: Path, folder: Path) -> None:
    text.write_text("one</s>" + "é" * 100_000)
    tokenizer = ByT5Tokenizer()
    ids = TokenCache(tokenizer, folder).ids(text)
    assert bytes(id - 3 for id in ids.tolist()) == text.read_bytes()


@pytest.mark.parametrize(
    ("content", "position"),
    [(b"a\xff", 1), (b"abc\xc3", 3), (b"ab\xc3cd", 2), (b"abcdef\xe4\xb8A", 6), (b"\xf0\x9f", 0)],
)
def test_bytes_that_are_no_text_are_named_by_their_place_in_the_file(
    text: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, position: int
) -> None:
    text.write_bytes(content)
    for block in (1, 2, 3, 4, 100):
        monkeypatch.setattr(token_cache, "READ_BYTES", block)
        with pytest.raises(UnicodeDecodeError) as caught:
            TokenCache(byte_tokenizer(), folder).ids(text)
        assert caught.value.start == position


@pytest.mark.parametrize("block", [1, 2, 3, 5])
def test_characters_across_blocks_are_whole(
    text: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(token_cache, "READ_BYTES", block)
    text.write_bytes("aé中🙂\r\n".encode())
    assert decoded(TokenCache(byte_tokenizer(), folder).ids(text)) == "aé中🙂\r\n"


def test_the_folder_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/x")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert default_folder() == Path("/cache/longstraw/tokens")
    # The standard says that a relative one is to be ignored.
    for ignored in ("", "cache"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert default_folder() == Path("/home/x/.cache/longstraw/tokens")

    def no_home() -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(InputError, match=r"data\.token_cache: there is no home folder"):
        default_folder()
