"""Rewrites the golden run on purpose, and says what changed.

Run `python tools/write_golden.py` when the numbers of a run are meant to change, and give the reason in the commit.
With `--inputs` it first writes the model and the prompts anew, which are the same every time.
"""

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from transformers import GenerationConfig

ROOT = Path(__file__).parents[1]
# Under pytest the root is on the path; here it is put there.
sys.path.insert(0, str(ROOT))

from tests.golden.golden_run import FIGURES, FOLDER, Steps, golden_run, store, stored_steps  # noqa: E402
from tests.oracle.conventional import tiny_model  # noqa: E402

EOS_IDS = [3, 17, 40, 41, 66, 90]
NUM_PROMPTS = 7


def main() -> None:
    """Run it, compare, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", action="store_true", help="write the model and the prompts anew")
    options = parser.parse_args()
    os.chdir(ROOT)
    torch.set_num_threads(1)
    if options.inputs:
        write_inputs()
    with tempfile.TemporaryDirectory() as folder:
        steps = golden_run(Path(folder) / "run")
    former = stored_steps()
    store(steps)
    print("\n".join(differences(former, steps)) or "nothing changed")


def write_inputs() -> None:
    """Write the model folder, in bfloat16 for its size, and prompts of token ids."""
    shutil.rmtree(FOLDER / "model", ignore_errors=True)
    model = tiny_model("llama", dtype=torch.bfloat16)
    model.generation_config = GenerationConfig(eos_token_id=EOS_IDS)
    model.save_pretrained(FOLDER / "model")
    (FOLDER / "model" / "model.safetensors").chmod(0o644)
    generator = random.Random(0)
    prompts = [[generator.randrange(97) for _ in range(generator.randint(60, 100))] for _ in range(NUM_PROMPTS)]
    lines = (json.dumps({"prompt_ids": prompt}) + "\n" for prompt in prompts)
    (FOLDER / "prompts.jsonl").write_text("".join(lines))


def differences(former: Steps, steps: Steps) -> list[str]:
    """Describe what changed, a line a figure of a step."""
    if len(former) != len(steps):
        return [f"{len(steps)} steps, formerly {len(former)}"]
    lines = []
    for number, (old, new) in enumerate(zip(former, steps, strict=True), start=1):
        lines += [
            f"step {number}: {name} {new[name]!r}, formerly {old[name]!r}" for name in FIGURES if old[name] != new[name]
        ]
        if old["ids"] != new["ids"]:
            lines.append(f"step {number}: other sampled ids")
    return lines


if __name__ == "__main__":
    main()
