"""What a model's folder says beside weights: its tokenizer and which tokens end a response."""

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, GenerationConfig

from megatron_longstraw.errors import InputError, first_line

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")


def read_tokenizer(folder: Path) -> Any:
    """Read the folder's tokenizer; None where it has none, which is enough for data in token ids.

    Raises:
        InputError: its files cannot be read.
    """
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        return None
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    # Tokenizer libraries raise whatever they like for a damaged file, a bare Exception among it.
    except Exception as error:
        raise InputError(f"the tokenizer cannot be read: {first_line(error)}", file=folder) from error


def end_ids(folder: Path, hf_config: Any, tokenizer: Any) -> frozenset[int]:
    """All end-of-sequence ids: the generation config's, or else the config's, or else the tokenizer's.

    Raises:
        InputError: the generation config cannot be read.
    """
    file = folder / "generation_config.json"
    ids = None
    if file.is_file():
        try:
            ids = GenerationConfig.from_pretrained(folder, local_files_only=True).eos_token_id
        except (OSError, ValueError) as error:
            raise InputError(f"cannot be read: {first_line(error)}", file=file) from error
    for fallback in (hf_config.eos_token_id, getattr(tokenizer, "eos_token_id", None)):
        ids = fallback if ids is None else ids
    return frozenset([ids] if isinstance(ids, int) else ids or [])
