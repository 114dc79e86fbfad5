"""Compares one GRPO update of a long prompt, ours and the conventional one, in time, memory and gradient.

    python tools/bench_update.py --prompt-tokens 16384 --responses 8 --response-tokens 128 --json bench.json

All variants get the same random Llama, prompt and group, the same number of threads, and a process each, one after the
other. The conventional update is written with transformers as one would write it for a long prompt: SDPA, gradient
checkpointing, one response at a time, logits of the response's tokens only, gradients added up in `.grad`. No optimizer
step is part of any of them.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.utils.logging import disable_progress_bar

from megatron_longstraw.device.memory import LiveBytes, peak_rss_bytes, reset_peak_rss

VARIANTS = ("full", "stop", "conventional")
WEIGHTS_SEED, GROUP_SEED = 0, 1
ADVANTAGE_EPSILON = 1e-4
MIB = 2**20


@dataclass(frozen=True)
class Update:
    """One way to compute the gradient of a group.

    Args:
        run: adds the gradient to the gradient buffers; called with how many of the group's responses to take.
        zero_gradients: clears the gradient buffers, in place.
        gradients: reads them, by transformers' parameter name.
        own_tensors: parameters and gradient buffers, which any update needs.
    """

    run: Callable[[int], None]
    zero_gradients: Callable[[], None]
    gradients: Callable[[], dict[str, Tensor]]
    own_tensors: list[Tensor]


@dataclass(frozen=True)
class Measurement:
    """What a variant's process reports.

    Args:
        seconds: wall time of the fastest repetition.
        cpu_seconds: processor time of that repetition, all threads together; other programs disturb it less.
        peak_live_bytes: most bytes of live tensors beyond parameters and gradients.
        peak_rss_bytes: most resident memory of the process beyond what it had before its first update.
        own_bytes: parameters and gradients.
    """

    seconds: float
    cpu_seconds: float
    peak_live_bytes: int
    peak_rss_bytes: int
    own_bytes: int


@contextmanager
def conventional(folder: Path, group: dict[str, Any], settings: argparse.Namespace) -> Iterator[Update]:
    """Prepares the update as it is written with transformers alone."""
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, settings.dtype), attn_implementation="sdpa"
    )
    # Checkpointing is only active in training mode; the model has no dropout.
    model.train()
    model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    advantages = group_advantages(group)

    def run(responses: int) -> None:
        total_tokens = sum(len(response["ids"]) for response in group["responses"])
        for response, advantage in list(zip(group["responses"], advantages, strict=True))[:responses]:
            targets = torch.tensor(response["ids"])
            ids = torch.tensor([[*group["prompt_ids"], *response["ids"][:-1]]])
            logits = model(ids, use_cache=False, logits_to_keep=len(targets)).logits[0]
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
            logprobs = -torch.nn.functional.cross_entropy(logits, targets, reduction="none")
            ratio = torch.exp(logprobs - logprobs.detach())
            losses = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
            (losses.sum() / total_tokens).backward()

    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    yield Update(
        run=run,
        zero_gradients=lambda: torch._foreach_zero_(list(gradients.values())),
        gradients=lambda: gradients,
        own_tensors=[*model.parameters(), *gradients.values()],
    )


@contextmanager
def ours(
    folder: Path, group: dict[str, Any], settings: argparse.Namespace, *, prompt_gradient: str
) -> Iterator[Update]:
    """Prepares the package's update: everything `longstraw train` does for a recorded group, at learning rate 0."""
    # Here, so that Megatron is loaded by the processes that need it, and not by the conventional one.
    from megatron_longstraw.checkpoint.families import to_hf
    from megatron_longstraw.config.load import load_config
    from megatron_longstraw.model.build import read_hf_config
    from megatron_longstraw.trainer import build
    from megatron_longstraw.transaction import update

    (folder / "recorded.jsonl").write_text(json.dumps(group) + "\n")
    plain = {
        "run_dir": folder / "run",
        "model.hf": folder,
        "model.dtype": settings.dtype,
        "rollout.source": "recorded",
        "rollout.path": folder / "recorded.jsonl",
        "replay.segment_tokens": settings.segment_tokens,
        "replay.prompt_gradient": prompt_gradient,
        "objective.advantage.epsilon": ADVANTAGE_EPSILON,
        "optimizer.name": "sgd",
        "optimizer.clip_grad": 0,
    }
    config_file = folder / "config.yaml"
    config_file.write_text("{}\n")
    config = load_config(config_file, [*(f"{key}={value}" for key, value in plain.items()), *settings.set])
    with build(config) as trainer:
        parameters = dict(trainer.model.named_parameters())
        works, _ = trainer.machine.source.take(0, 0, 1)

        def run(responses: int) -> None:
            assert responses == len(group["responses"])
            update(trainer.machine, works, 0.0)

        def gradients() -> dict[str, Tensor]:
            hf_config = read_hf_config(folder)
            buffers = {name: parameter.main_grad for name, parameter in parameters.items()}
            return dict(to_hf(buffers, hf_config))

        own_tensors = [*parameters.values(), *(parameter.main_grad for parameter in parameters.values())]
        # The update clears its gradients itself.
        yield Update(run=run, zero_gradients=lambda: None, gradients=gradients, own_tensors=own_tensors)


def group_advantages(group: dict[str, Any]) -> list[float]:
    """Computes `(r - mean) / (std + epsilon)`, std with Bessel's correction."""
    rewards = torch.tensor([response["reward"] for response in group["responses"]], dtype=torch.float64)
    return ((rewards - rewards.mean()) / (rewards.std() + ADVANTAGE_EPSILON)).tolist()


def measure(subject: Update, responses: int, repeat: int, *, warm_up_responses: int) -> Measurement:
    """Measures memory in a first pass, which also warms up, and time in the passes after it."""
    with LiveBytes() as live:
        live.register(*subject.own_tensors)
        own_bytes = live.current
        reset_peak_rss()
        resident = peak_rss_bytes()
        live.reset_peak()
        subject.run(warm_up_responses)
        peak_live, peak_rss = live.peak - own_bytes, peak_rss_bytes() - resident
    times = []
    for _ in range(repeat):
        subject.zero_gradients()
        wall, processor = time.perf_counter(), time.process_time()
        subject.run(responses)
        times.append((time.perf_counter() - wall, time.process_time() - processor))
    seconds, cpu_seconds = min(times)
    return Measurement(seconds, cpu_seconds, peak_live, peak_rss, own_bytes)


def write_model(folder: Path, settings: argparse.Namespace) -> None:
    """Writes the random Llama that all variants read."""
    torch.manual_seed(WEIGHTS_SEED)
    config = LlamaConfig(
        vocab_size=settings.vocab,
        hidden_size=settings.hidden,
        intermediate_size=settings.ffn,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.query_heads,
        num_key_value_heads=settings.kv_heads,
        max_position_embeddings=settings.prompt_tokens + settings.response_tokens,
        tie_word_embeddings=False,
        # Wide enough for attention that is not uniform, or the gradient through the prompt would hardly matter.
        initializer_range=0.06,
    )
    LlamaForCausalLM(config).to(getattr(torch, settings.dtype)).save_pretrained(folder)


def random_group(settings: argparse.Namespace) -> dict[str, Any]:
    """Draws a prompt and responses of random tokens, in the form of a line of recorded rollouts."""
    generator = torch.Generator().manual_seed(GROUP_SEED)

    def draw(tokens: int) -> list[int]:
        ids: list[int] = torch.randint(settings.vocab, (tokens,), generator=generator).tolist()
        return ids

    responses = [
        {"ids": draw(settings.response_tokens), "reward": float(index % 3) / 2} for index in range(settings.responses)
    ]
    return {"prompt_ids": draw(settings.prompt_tokens), "responses": responses}


def work(variant: str, folder: Path, settings: argparse.Namespace) -> None:
    """Measures one variant in this process; leaves its gradient and figures in the folder."""
    torch.set_num_threads(settings.threads)
    group = json.loads((folder / "group.json").read_text())
    if variant == "conventional":
        prepared = conventional(folder, group, settings)
        # Each response has a graph of its own, so that the later ones need no more memory than the second.
        warm_up_responses = min(2, settings.responses)
    else:
        prepared = ours(folder, group, settings, prompt_gradient=variant)
        warm_up_responses = settings.responses
    with prepared as subject:
        measurement = measure(subject, settings.responses, settings.repeat, warm_up_responses=warm_up_responses)
        gradients = {name: gradient.contiguous() for name, gradient in subject.gradients().items()}
    save_file(gradients, folder / f"{variant}.safetensors")
    (folder / f"{variant}.json").write_text(json.dumps(asdict(measurement)))


def relative_difference(folder: Path, variant: str, reference: str) -> float | None:
    """Computes the relative L2 difference of two variants' whole gradients; None where one of them did not run."""
    files = [folder / f"{name}.safetensors" for name in (variant, reference)]
    if not all(file.exists() for file in files):
        return None
    ours_, theirs = (load_file(file) for file in files)
    if ours_.keys() != theirs.keys():
        raise SystemExit(f"gradients of {variant} and {reference} differ in {sorted(ours_.keys() ^ theirs.keys())}")
    difference = sum(float((ours_[name].double() - theirs[name].double()).square().sum()) for name in theirs)
    return (difference / sum(float(theirs[name].double().square().sum()) for name in theirs)) ** 0.5


def run_all(folder: Path, settings: argparse.Namespace, console: Console) -> dict[str, dict[str, Any]]:
    """Runs each variant in its own process and collects what they report."""
    write_model(folder, settings)
    (folder / "group.json").write_text(json.dumps(random_group(settings)))
    figures: dict[str, dict[str, Any]] = {}
    environment = {**os.environ, "OMP_NUM_THREADS": str(settings.threads)}
    for variant in settings.only:
        console.print(f"running {variant} …", style="dim")
        command = [
            sys.executable,
            "-W",
            "ignore::UserWarning",
            __file__,
            *sys.argv[1:],
            "--worker",
            variant,
            "--folder",
            str(folder),
        ]
        subprocess.run(command, check=True, env=environment)
        figures[variant] = json.loads((folder / f"{variant}.json").read_text())
    for variant, row in figures.items():
        row["gradient_difference"] = relative_difference(folder, variant, "conventional")
        if "conventional" in figures:
            row["speedup"] = figures["conventional"]["seconds"] / row["seconds"]
            row["cpu_speedup"] = figures["conventional"]["cpu_seconds"] / row["cpu_seconds"]
            row["memory_ratio"] = row["peak_live_bytes"] / figures["conventional"]["peak_live_bytes"]
    return figures


def show(figures: dict[str, dict[str, Any]], settings: argparse.Namespace, console: Console) -> None:
    """Prints the figures as a table."""
    table = Table(
        title=f"one update, P={settings.prompt_tokens:,} G={settings.responses} R={settings.response_tokens}, "
        f"{settings.layers} layers x {settings.hidden}, {settings.dtype}, {settings.threads} threads"
    )
    for heading in ("update", "seconds", "faster", "MiB *", "ratio", "RSS MiB *", "gradient"):
        table.add_column(heading, justify="left" if heading == "update" else "right")
    for variant, row in figures.items():
        table.add_row(
            variant,
            f"{row['seconds']:.2f}",
            f"{row['speedup']:.2f}x" if "speedup" in row else "",
            f"{row['peak_live_bytes'] / MIB:.1f}",
            f"{row['memory_ratio']:.3f}" if "memory_ratio" in row else "",
            f"{row['peak_rss_bytes'] / MIB:.1f}",
            "" if row["gradient_difference"] is None else f"{row['gradient_difference']:.1e}",
        )
    own_bytes = max(row["own_bytes"] for row in figures.values())
    table.caption = (
        f"* peak beyond the model's own parameters and gradients ({own_bytes / MIB:.1f} MiB): live tensors, and their "
        "ratio to conventional; resident memory. gradient: relative L2 difference to conventional."
    )
    console.print(table)


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompt-tokens", type=int, default=16384)
    parser.add_argument("--responses", type=int, default=8)
    parser.add_argument("--response-tokens", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--query-heads", type=int, default=8)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--ffn", type=int, default=768)
    parser.add_argument("--vocab", type=int, default=4096)
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float64"], default="float32")
    parser.add_argument("--segment-tokens", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=1, help="timed passes; the fastest counts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--only", nargs="+", choices=VARIANTS, default=list(VARIANTS), help="run only these")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="further config keys of our variants")
    parser.add_argument("--worker", choices=VARIANTS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Runs the comparison, or one variant of it."""
    settings = parse_arguments()
    disable_progress_bar()
    if settings.worker:
        work(settings.worker, settings.folder, settings)
        return
    console = Console()
    with tempfile.TemporaryDirectory(prefix="bench_update_") as folder:
        figures = run_all(Path(folder), settings, console)
    show(figures, settings, console)
    if settings.json:
        sizes = {name: value for name, value in vars(settings).items() if name not in ("worker", "folder", "json")}
        machine = {"processor": platform.processor() or platform.machine(), "torch": torch.__version__}
        settings.json.write_text(json.dumps({"settings": sizes, "machine": machine, "variants": figures}, indent=2))


if __name__ == "__main__":
    main()
