"""Measures how long a text file takes to become token ids on disk, and from there again.

    python tools/bench_tokenize.py --hf models/smollm2 --tokens 1000000

The text is Python's own documentation, its paragraphs drawn at random again and again, so that no stretch of it is a
repeat of another. Each measurement is a process of its own, which loads the tokenizer before the clock starts.
"""

import argparse
import json
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from transformers import AutoTokenizer

from megatron_longstraw.data.token_cache import TokenCache

MIB = 2**20


def write_text(path: Path, tokenizer: Any, *, tokens: int, seed: int) -> None:
    """Write a text of at least so many tokens, the same one for the same seed."""
    paragraphs = [paragraph for text in topics.values() for paragraph in text.split("\n\n") if paragraph.strip()]
    rng = random.Random(seed)
    with path.open("w", encoding="utf-8", newline="") as file:
        written = 0
        while written < tokens:
            drawn = "".join(f"{rng.choice(paragraphs)}\n\n" for _ in range(1000))
            file.write(drawn)
            written += len(tokenizer(drawn, add_special_tokens=False, verbose=False)["input_ids"])


def measure(text: Path, hf: Path, cache: Path) -> dict[str, float]:
    """Read a text's ids once, and say what it took this process."""
    tokens = TokenCache(AutoTokenizer.from_pretrained(hf, local_files_only=True), cache)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start, cpu_start = time.perf_counter(), time.process_time()
    ids = tokens.ids(text)
    # Ids that are mapped into memory are read when they are looked at.
    ids.max()
    return {
        "tokens": len(ids),
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - cpu_start,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "rss_before_bytes": before * 1024,
    }


def machine() -> str:
    """The machine, in words."""
    names = [line.partition(": ")[2] for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores, {memory:.0f} GiB"


def main() -> None:
    """Measure a cold and a kept text, and print both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hf", type=Path, required=True, help="a Hugging Face folder with a tokenizer")
    parser.add_argument("--tokens", type=int, default=1_000_000, help="the text has at least so many")
    parser.add_argument("--seed", type=int, default=0, help="of the text")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--worker", type=Path, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(measure(options.worker[0], options.hf, options.worker[1])))
        return
    if not options.hf.is_dir():
        parser.error(f"--hf: there is no folder {options.hf}")
    with tempfile.TemporaryDirectory() as folder:
        text, cache = Path(folder) / "text.txt", Path(folder) / "tokens"
        tokenizer = AutoTokenizer.from_pretrained(options.hf, local_files_only=True)
        write_text(text, tokenizer, tokens=options.tokens, seed=options.seed)
        command = [sys.executable, __file__, "--hf", str(options.hf), "--worker", str(text), str(cache)]
        figures = {
            name: json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            for name in ("cold", "kept")
        }
        print(f"{machine()}\n{figures['cold']['tokens']:,} tokens from {text.stat().st_size:,} bytes of text")
    for name, figure in figures.items():
        print(
            f"{name}: {figure['seconds']:.2f} s, {figure['cpu_seconds']:.2f} CPU s, peak memory "
            f"{figure['peak_rss_bytes'] / MIB:,.0f} MiB ({figure['rss_before_bytes'] / MIB:,.0f} MiB before)"
        )
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
