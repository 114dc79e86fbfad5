"""The command line: `longstraw`, and the same as `python -m megatron_longstraw`."""

import argparse
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.progress import Progress as RichProgress

from megatron_longstraw import __version__
from megatron_longstraw.config.check import check_files
from megatron_longstraw.config.load import load_config
from megatron_longstraw.errors import Diverged, DoesNotFit, InputError, Interrupted

DONE = 0
FAILED = 1
BAD_INPUT = 2
DOES_NOT_FIT = 3
INTERRUPTED = 130
_DTYPES = ("float32", "bfloat16", "float16", "float64")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: what follows the program's name; by default that of this process.

    Returns:
        The exit status: 0 done; 1 diverged; 2 bad usage or bad input; 3 does not fit; 130 interrupted. Any other
        failure is ours: it keeps its traceback, and Python exits with 1.
    """
    try:
        options = _parser().parse_args(arguments)
        options.command(options)
    except InputError as error:
        return _fail(str(error), BAD_INPUT)
    except Diverged as error:
        return _fail(str(error), FAILED)
    except DoesNotFit as error:
        return _fail(str(error), DOES_NOT_FIT)
    except Interrupted as error:
        return _fail(str(error) or "interrupted, and saved", INTERRUPTED)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    return DONE


def train(options: argparse.Namespace) -> None:
    """`longstraw train CONFIG [key=value ...]`."""
    config = load_config(options.config, options.overrides)
    check_files(config)
    _silence()
    # Imported when the configuration is known to be right: torch and Megatron take seconds.
    from megatron_longstraw import trainer

    trainer.train(config)


def convert_to_megatron(options: argparse.Namespace) -> None:
    """`longstraw convert to-megatron --hf DIR --out DIR`."""
    _silence()
    from megatron_longstraw.checkpoint import convert

    with _byte_progress("to-megatron") as on_progress:
        convert.to_megatron(options.hf, options.out, on_progress=on_progress)
    print(f"wrote {options.out}; train with model.checkpoint={options.out}")


def convert_to_hf(options: argparse.Namespace) -> None:
    """`longstraw convert to-hf --checkpoint DIR --out DIR`."""
    _silence()
    from megatron_longstraw.checkpoint import convert

    with _byte_progress("to-hf") as on_progress:
        convert.to_hf(
            options.checkpoint,
            options.out,
            dtype=options.dtype,
            shard_bytes=round(options.max_shard_gb * 10**9),
            on_progress=on_progress,
        )
    print(f"wrote {options.out}")


def doctor(options: argparse.Namespace) -> None:
    """`longstraw doctor`."""
    from megatron_longstraw import doctor as report

    report.show()


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, like every other error."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see {self.prog} --help")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="longstraw", description="Exact GRPO on million-token prompts.")
    parser.add_argument("--version", action="version", version=f"longstraw {__version__}")
    # DeepSpeed's launcher puts it before the command; the rank is read from the environment.
    parser.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    training = commands.add_parser("train", help="the GRPO loop; resumes by itself from its run directory")
    training.add_argument("config", metavar="CONFIG.yaml", help="the configuration")
    training.add_argument("overrides", metavar="key=value", nargs="*", help="keys that differ from the file")
    training.set_defaults(command=train)

    _add_convert(commands.add_parser("convert", help="between a Hugging Face folder and a checkpoint, both ways"))

    checking = commands.add_parser(
        "doctor", help="versions, devices, usable kernels and engines, and why not the others"
    )
    checking.set_defaults(command=doctor)
    return parser


def _add_convert(parser: argparse.ArgumentParser) -> None:
    ways = parser.add_subparsers(metavar="WAY", required=True)

    to_megatron = ways.add_parser("to-megatron", help="a checkpoint of a Hugging Face folder, for model.checkpoint")
    to_megatron.add_argument("--hf", metavar="DIR", required=True, help="config.json, safetensors, tokenizer")
    to_megatron.add_argument("--out", metavar="DIR", required=True, help="a new or an empty folder")
    to_megatron.set_defaults(command=convert_to_megatron)

    to_hf = ways.add_parser("to-hf", help="a Hugging Face folder of a checkpoint")
    checkpoint = "a run directory, its checkpoints, or one iter_NNNNNNN of it; of several the newest"
    to_hf.add_argument("--checkpoint", metavar="DIR", required=True, help=checkpoint)
    to_hf.add_argument("--out", metavar="DIR", required=True, help="a new or an empty folder")
    to_hf.add_argument("--dtype", choices=_DTYPES, help="of the weights; by default the checkpoint's")
    to_hf.add_argument(
        "--max-shard-gb", metavar="GB", type=_positive, default=4.0, help="size of a file of weights (default: 4)"
    )
    to_hf.set_defaults(command=convert_to_hf)


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return value


@contextmanager
def _byte_progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal's stderr."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with RichProgress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def _silence() -> None:
    """Pass over the warnings of libraries that say nothing of the run."""
    # Megatron-core says several times what it does without; `longstraw doctor` says it once.
    warnings.filterwarnings("ignore", module=r"megatron\.core\.")
    warnings.filterwarnings("ignore", message="Transformer Engine and Apex are not installed")
    # Torch warns of its own class while Megatron's checkpoints are read with it.
    warnings.filterwarnings("ignore", message="Please use DTensor instead", category=FutureWarning)
    warnings.filterwarnings("ignore", message="Apex is not installed")
    warnings.filterwarnings("ignore", message="full scope is deprecated")


def _fail(message: str, status: int) -> int:
    print(f"longstraw: {' '.join(message.split())}", file=sys.stderr)
    return status
