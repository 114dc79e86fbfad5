"""The command line: `longstraw`, and the same as `python -m megatron_longstraw`."""

import argparse
import sys
import warnings
from collections.abc import Sequence
from typing import NoReturn

from megatron_longstraw import __version__
from megatron_longstraw.config.check import check_files
from megatron_longstraw.config.load import load_config
from megatron_longstraw.errors import Diverged, DoesNotFit, InputError, Interrupted

DONE = 0
FAILED = 1
BAD_INPUT = 2
DOES_NOT_FIT = 3
INTERRUPTED = 130


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
    # Megatron-core says several times what it does without; `longstraw doctor` says it once.
    warnings.filterwarnings("ignore", module=r"megatron\.core\.")
    warnings.filterwarnings("ignore", message="Transformer Engine and Apex are not installed")
    # Torch warns of its own class while Megatron's checkpoints are read with it.
    warnings.filterwarnings("ignore", message="Please use DTensor instead", category=FutureWarning)
    warnings.filterwarnings("ignore", message="Apex is not installed")
    warnings.filterwarnings("ignore", message="full scope is deprecated")
    # Imported when the configuration is known to be right: torch and Megatron take seconds.
    from megatron_longstraw import trainer

    trainer.train(config)


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

    checking = commands.add_parser(
        "doctor", help="versions, devices, usable kernels and engines, and why not the others"
    )
    checking.set_defaults(command=doctor)
    return parser


def _fail(message: str, status: int) -> int:
    print(f"longstraw: {' '.join(message.split())}", file=sys.stderr)
    return status
