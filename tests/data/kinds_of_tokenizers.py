"""Tokenizers of the kinds that models have, small, trained in memory on Python's own documentation."""

from collections.abc import Callable
from functools import cache
from pydoc_data.topics import topics
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

SPECIAL, ADDED = "<|end|>", "<a tool's use>"
_LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_BYTES = pre_tokenizers.ByteLevel.alphabet()


@cache
def corpus() -> list[str]:
    """Prose, and runs whose merges depend on where they begin."""
    texts = [text for text in topics.values() if isinstance(text, str)][::6]
    return [*texts, "a" * 64, "1" * 32, " " * 40, "é " * 20, "中文 " * 10]


def _bpe(core: Tokenizer, alphabet: list[str]) -> Tokenizer:
    trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False)
    core.train_from_iterator(corpus(), trainer)
    return core


def _gpt_2() -> Tokenizer:
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    return _bpe(core, _BYTES)


def _llama_3() -> Tokenizer:
    core = Tokenizer(models.BPE(ignore_merges=True))
    split = pre_tokenizers.Split(Regex(_LLAMA_3), behavior="isolated")
    core.normalizer = normalizers.NFC()
    core.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    return _bpe(core, _BYTES)


def _smollm() -> Tokenizer:
    core = Tokenizer(models.BPE())
    digits = pre_tokenizers.Digits(individual_digits=True)
    core.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=True)])
    return _bpe(core, _BYTES)


def _llama_2() -> Tokenizer:
    """No pre-tokenizer: a text is one word."""
    pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    core = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(
        vocab_size=900, special_tokens=["<unk>", *pieces], show_progress=False, max_token_length=16
    )
    # Without limits on a word, training on whole texts would take long.
    words = [text[start : start + 400] for text in corpus()[::4] for start in range(0, min(len(text), 4000), 400)]
    core.train_from_iterator(words, trainer)
    return core


def _llama_2_metaspace() -> Tokenizer:
    core = _llama_2()
    core.normalizer = None
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return core


def _word_piece() -> Tokenizer:
    core = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=30))
    core.normalizer = normalizers.BertNormalizer()
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=900, special_tokens=["[UNK]"], show_progress=False)
    core.train_from_iterator(corpus(), trainer)
    return core


def _words() -> Tokenizer:
    core = Tokenizer(models.WordLevel(unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordLevelTrainer(vocab_size=900, special_tokens=["<unk>"], show_progress=False)
    core.train_from_iterator(corpus(), trainer)
    return core


def _phases() -> Tokenizer:
    """Whether `abab…` is pairs of `ab` or of `ba` depends on both of its ends."""
    scores = {"<unk>": 0.0, "a": -5.0, "b": -5.0, "ab": -1.0, "ba": -1.0, "L": -4.0, "La": -1.0, "R": -4.0, "bR": -1.0}
    return Tokenizer(models.Unigram(list(scores.items()), unk_id=0))


def _unigram(*, split: bool) -> Tokenizer:
    core = Tokenizer(models.Unigram())
    core.normalizer = normalizers.NFKC()
    core.pre_tokenizer = pre_tokenizers.Metaspace(split=split)
    pieces = [("<unk>", 0.0), *((symbol, -6.0 - index / 7) for index, symbol in enumerate("▁etaoins rhdluc"))]
    pieces += [("aa", -6.5), ("aaa", -7.1), ("th", -6.6), ("the", -7.0), ("▁the", -7.2), ("ing", -7.4), ("\n", -8.0)]
    core.model = models.Unigram(pieces, unk_id=0)
    return core


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "gpt_2": _gpt_2,
    "llama_3": _llama_3,
    "smollm": _smollm,
    "llama_2": _llama_2,
    "llama_2_metaspace": _llama_2_metaspace,
    "word_piece": _word_piece,
    "words": _words,
    "unigram": lambda: _unigram(split=True),
    "phases": _phases,
    "unigram_one_word": lambda: _unigram(split=False),
}


@cache
def tokenizer_of(kind: str) -> Any:
    """One of `KINDS`, with a control token and an added token that is none."""
    core = KINDS[kind]()
    core.add_special_tokens([AddedToken(SPECIAL, special=True)])
    core.add_tokens([AddedToken(ADDED)])
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token=SPECIAL)
