"""Imports point down, files and functions stay small, and what belongs in one place stays there."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = "megatron_longstraw"
# Lowest first. Parts of one layer do not import each other.
LAYERS = (
    ("errors",),
    ("grpo", "config", "types", "interrupt"),
    ("device", "kernels"),
    ("parallel",),
    ("state",),
    ("model", "engine", "data", "rewards"),
    ("replay", "checkpoint", "tracking"),
    ("rollout",),
    ("transaction", "planner"),
    ("trainer",),
    ("doctor",),
    ("cli",),
    ("__main__",),
)
LAYER = {part: index for index, parts in enumerate(LAYERS) for part in parts}
FILES = sorted(
    [*ROOT.glob(f"{PACKAGE}/**/*.py"), *ROOT.glob("kernels/**/*.py"), *ROOT.glob("tools/**/*.py")],
    key=str,
)
LARGEST_FILE = 400
LARGEST_FUNCTION = 60
LARGEST_LAUNCH = 120
MOST_ARGUMENTS = 8

every_file = pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))


def part_of(path: Path) -> str:
    """The package's part that a file is in, such as `config` or `cli`; `tools` is none of them."""
    names = path.relative_to(ROOT).parts
    return names[0] if names[0] != PACKAGE else names[1].removesuffix(".py")


def imports_of(path: Path) -> Iterator[str]:
    """Every imported module, with the names taken from it, since those may be modules."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@every_file
def test_imports_point_down(path: Path) -> None:
    part = part_of(path)
    upwards = []
    for name in imports_of(path):
        package, _, rest = name.partition(".")
        imported = rest.partition(".")[0]
        # Tools and `__init__` stand above everything; `__version__` is no part.
        if package == PACKAGE and imported in LAYER and part in LAYER:
            assert part != "errors"
            if imported != part and LAYER[imported] >= LAYER[part]:
                upwards.append(name)
    assert upwards == []


def test_every_part_has_a_layer() -> None:
    parts = {part_of(path) for path in FILES} - {"tools", "__init__"}
    assert parts <= set(LAYER)


@pytest.mark.parametrize(
    ("part", "banned"),
    [
        ("replay", f"{PACKAGE}.grpo"),
        ("replay", f"{PACKAGE}.state.adapters"),
        ("kernels", "torch.distributed"),
        ("kernels", "megatron"),
        ("config", "torch"),
        ("grpo", PACKAGE),
    ],
)
def test_what_a_part_must_not_know(part: str, banned: str) -> None:
    found = [
        f"{path}: {name}"
        for path in FILES
        for name in imports_of(path)
        if part_of(path) == part and f"{name}.".startswith(f"{banned}.") and not name.startswith(f"{PACKAGE}.{part}.")
    ]
    assert found == []


def test_only_parallel_and_engines_talk_to_other_ranks() -> None:
    found = [
        str(path)
        for path in FILES
        if part_of(path) not in ("parallel", "engine")
        and any(name.startswith(("torch.distributed", "megatron.core.parallel_state")) for name in imports_of(path))
    ]
    assert found == []


def test_only_device_and_kernels_name_cuda() -> None:
    found = []
    for path in FILES:
        if part_of(path) in ("device", "kernels", "tools"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            named = isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("cuda")
            if named or (isinstance(node, ast.Attribute) and node.attr == "cuda"):
                found.append(f"{path}:{node.lineno}")
    assert found == []


@every_file
def test_files_and_functions_stay_small(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= LARGEST_FILE
    longest = LARGEST_LAUNCH if path.name == "triton.py" else LARGEST_FUNCTION
    too_large = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            arguments = node.args
            count = len(arguments.posonlyargs + arguments.args + arguments.kwonlyargs)
            method = bool(arguments.args) and arguments.args[0].arg in ("self", "cls", "ctx")
            assert node.end_lineno is not None
            lines = node.end_lineno - node.lineno + 1
            if lines > longest or (count - method > MOST_ARGUMENTS and path.name != "triton.py"):
                too_large.append(f"{node.name}: {lines} lines, {count} arguments")
    assert too_large == []


@every_file
def test_there_are_no_globals(path: Path) -> None:
    assert [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Global)] == []
