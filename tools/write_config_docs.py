"""Write docs/config.md from the configuration's dataclasses.

python tools/write_config_docs.py
"""

import ast
import inspect
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from megatron_longstraw.config import schema
from megatron_longstraw.config.load import describe_type

FILE = Path(__file__).parent.parent / "docs" / "config.md"
HEAD = """# Configuration keys

One YAML file, and overrides on the command line by dotted key: `longstraw train my.yaml optimizer.lr=1e-5`. An unknown
key or a wrong value is an error that says what is allowed. This page is written by `tools/write_config_docs.py`.

| key | allowed | default | meaning |
| --- | --- | --- | --- |
"""


def field_texts(section: type) -> dict[str, str]:
    """The text under each field of a dataclass, in one line."""
    (body,) = ast.parse(inspect.getsource(section)).body
    assert isinstance(body, ast.ClassDef)
    texts = {}
    for node, following in zip(body.body, body.body[1:], strict=False):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(following, ast.Expr):
            assert isinstance(following.value, ast.Constant)
            texts[node.target.id] = " ".join(str(following.value.value).split())
    return texts


def rows(section: Any, prefix: str = "") -> list[str]:
    """A table row for every key of a section with its defaults."""
    hints, texts = get_type_hints(type(section), include_extras=True), field_texts(type(section))
    found = []
    for item in fields(section):
        value = getattr(section, item.name)
        if is_dataclass(value):
            found += rows(value, f"{prefix}{item.name}.")
            continue
        default = yaml.safe_dump(list(value) if isinstance(value, tuple) else value, default_flow_style=True)
        shown = default.removesuffix("...\n").strip()
        cells = [f"`{prefix}{item.name}`", describe_type(hints[item.name]), f"`{shown}`", texts.get(item.name, "")]
        found.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return found


def page() -> str:
    """The whole page."""
    return HEAD + "\n".join(rows(schema.Config())) + "\n"


if __name__ == "__main__":
    FILE.write_text(page())
    print(f"wrote {FILE}")
