"""Answer the prompts of a configuration without training on them, and print the mean reward and some answers.

    python tools/evaluate.py configs/smollm2_135m_cpu.yaml data.prompts=runs/smollm2/questions/held_out.jsonl
    python tools/evaluate.py configs/smollm2_135m_cpu.yaml model.hf=null model.checkpoint=runs/smollm2/run [...]

Each prompt gets one answer, token by token the likeliest one; with --sampled as many as in training, drawn as there.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from megatron_longstraw.config.check import check_files
from megatron_longstraw.config.load import load_config
from megatron_longstraw.config.schema import Config
from megatron_longstraw.errors import InputError
from megatron_longstraw.replay.capture import capture
from megatron_longstraw.rollout.source import SampledRollouts
from megatron_longstraw.trainer import Trainer, build
from megatron_longstraw.types import Group


def greedy(config: Config) -> Config:
    """The configuration with one likeliest answer for each prompt."""
    return replace(config, rollout=replace(config.rollout, group_size=1, top_k=1))


def answered(trainer: Trainer, limit: int | None) -> Iterator[Group]:
    """Answer each prompt of the file once, in its order, with the weights as they are."""
    machine = trainer.machine
    assert isinstance(machine.source, SampledRollouts)
    prompts = len(machine.source.order)
    for position in range(prompts if limit is None else min(limit, prompts)):
        (work,), _ = machine.source.take(position, position, 1)
        state = capture(machine.executor, work.prompt, machine.state, machine.replay)
        yield machine.source.complete(machine.executor, state, work, lambda done, total: None)


def evaluate(config: Config, *, limit: int | None, samples: int) -> None:
    """Print a line a prompt while it is answered, and the whole at the end."""
    # The order of the file, and an optimizer that holds nothing: none of its steps are taken.
    config = replace(config, data=replace(config.data, shuffle=False), optimizer=replace(config.optimizer, name="sgd"))
    started = time.perf_counter()
    means: list[float] = []
    parts: dict[str, list[float]] = {}
    lengths: list[int] = []
    spread = 0
    with build(config) as trainer:
        for number, group in enumerate(answered(trainer, limit), start=1):
            lengths.append(len(group.prompt.ids))
            rewards = [response.reward for response in group.responses if response.reward is not None]
            if rewards:
                means.append(sum(rewards) / len(rewards))
                spread += min(rewards) < max(rewards)
            for name, value in (part for response in group.responses for part in response.reward_parts.items()):
                parts.setdefault(name, []).extend(() if value is None else (value,))
            if number <= samples:
                text = trainer.tokenizer.decode(group.responses[0].ids, skip_special_tokens=True)
                print(f"{group.prompt.source}: {text!r}, reward {means[-1] if rewards else None}", flush=True)
    seconds = time.perf_counter() - started
    print(f"{len(lengths)} prompts of {min(lengths):,} to {max(lengths):,} tokens, {seconds:.0f} s")
    if means:
        print(f"mean reward {sum(means) / len(means):.4f} of {len(means)}, {spread} with rewards that differ")
    for name, values in parts.items():
        print(f"mean {name} {sum(values) / len(values):.4f}" if values else f"{name}: nothing to compare with")


def main() -> None:
    """Evaluate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, help="as of `longstraw train`")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="as of `longstraw train`")
    parser.add_argument("--sampled", action="store_true", help="answers as in training, not the likeliest")
    parser.add_argument("--limit", type=int, help="answer the file's first so many prompts only")
    parser.add_argument("--samples", type=int, default=5, help="answers to print")
    options = parser.parse_intermixed_args()
    try:
        config = load_config(options.config, options.overrides)
        check_files(config)
        evaluate(config if options.sampled else greedy(config), limit=options.limit, samples=options.samples)
    except InputError as error:
        sys.exit(f"evaluate.py: {error}")


if __name__ == "__main__":
    main()
