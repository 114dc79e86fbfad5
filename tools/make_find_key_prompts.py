"""Write a file of "find the key" prompts for the packaged tiny model.

python tools/make_find_key_prompts.py --out runs/tiny/find_key.jsonl --rows 256 --prompt-tokens 4096 --seed 1
"""

import argparse
import json
from pathlib import Path

from megatron_longstraw.data.find_key import find_key_rows, shortest_prompt
from megatron_longstraw.errors import InputError


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the JSON lines file to write")
    parser.add_argument("--rows", type=int, default=256, help="number of prompts")
    parser.add_argument("--prompt-tokens", type=int, default=4096, help="exact length of every prompt")
    parser.add_argument("--seed", type=int, default=1, help="of the whole file")
    options = parser.parse_args()
    if options.prompt_tokens < shortest_prompt():
        parser.error(str(InputError("is too short", key="--prompt-tokens", allowed=f"at least {shortest_prompt()}")))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    rows = find_key_rows(rows=options.rows, prompt_tokens=options.prompt_tokens, seed=options.seed)
    with options.out.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    print(f"{options.rows} prompts of {options.prompt_tokens} tokens in {options.out}")


if __name__ == "__main__":
    main()
