#!/usr/bin/env bash
# Installs the project into .venv and trains the packaged tiny model on long "find the key" prompts; a second call resumes.
set -euo pipefail
cd "$(dirname "$0")/.."
source launch/venv.sh

run_dir=runs/tiny
if ! [ -f "$run_dir/find_key.jsonl" ]; then
    python tools/make_find_key_prompts.py --out "$run_dir/find_key.jsonl"
fi
longstraw train configs/tiny_cpu.yaml "$@"

python - "$run_dir" <<'PYTHON'
import json
import sys
from pathlib import Path

run_dir = Path(sys.argv[1])
lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
rewards = [line["reward/mean"] for line in lines]
edge = max(1, min(5, len(lines) // 2))
first, last = sum(rewards[:edge]) / edge, sum(rewards[-edge:]) / edge
print(f"""
Trained {len(lines)} GRPO steps: mean reward {first:.2f} in the first {edge} steps, {last:.2f} in the last {edge}.
  {run_dir}/metrics.jsonl   a line of figures for every step
  {run_dir}/rollouts/       what was sampled, with its rewards
  {run_dir}/checkpoints/    weights and optimizer; the same command resumes from the last one
  {run_dir}/config.yaml     the whole configuration
Next: change configs/tiny_cpu.yaml, or run `longstraw doctor` to see what this machine can use.""")
PYTHON
