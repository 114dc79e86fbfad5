"""Reads a configuration from YAML and dotted overrides, writes it back, and compares two of them."""

import dataclasses
import difflib
import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from megatron_longstraw.config.check import check_config
from megatron_longstraw.config.schema import Bounds, Config
from megatron_longstraw.errors import InputError

Section = TypeVar("Section")


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read, complete and check a configuration.

    Args:
        path: the YAML file. `checkpoint.run_dir` is accepted for `run_dir`, and `${other.key}` for another key's value.
        overrides: `key=value`, the key dotted and the value YAML; they win over the file, the last one over earlier.

    Returns:
        The configuration without an `auto` in it, and with a `run_dir`.

    Raises:
        InputError: the file, a key or a value is wrong.
    """
    raw, overridden = _merged(Path(path), overrides)
    source = _Source(Path(path), overridden)
    _move_run_dir(raw, source)
    config = _read_section(Config, raw, "", source)
    check_config(config)
    return _resolved(config, Path(path))


def dump_config(config: Config) -> str:
    """Write a configuration as YAML that `load_config` reads back to an equal one."""
    return yaml.safe_dump(_plain(config), sort_keys=False, allow_unicode=True, width=120)


def flatten(config: object, prefix: str = "") -> dict[str, object]:
    """List a section's values by dotted key, in the schema's order."""
    flat: dict[str, object] = {}
    for field in dataclasses.fields(config):  # type: ignore[arg-type]
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            flat |= flatten(value, f"{prefix}{field.name}.")
        else:
            flat[prefix + field.name] = _flat(value)
    return flat


def _flat(value: object) -> object:
    """A key's value, in which sections of a list become mappings."""
    if isinstance(value, tuple):
        return tuple(_flat(item) for item in value)
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value  # type: ignore[arg-type]


def config_keys() -> tuple[str, ...]:
    """Every dotted key, in the schema's order."""
    return tuple(flatten(Config()))


def differing_keys(a: Config, b: Config, prefixes: Sequence[str]) -> list[str]:
    """Name the keys in which two configurations differ.

    Args:
        a: one configuration.
        b: the other.
        prefixes: compare only these sections or keys, such as `model` or `train.seed`.

    Returns:
        Dotted keys in the schema's order.
    """
    first, second = flatten(a), flatten(b)
    chosen = [key for key in first if any(key == prefix or key.startswith(prefix + ".") for prefix in prefixes)]
    return [key for key in chosen if first[key] != second[key]]


@dataclass(frozen=True)
class _Source:
    """Where values came from, for messages."""

    file: Path
    overridden: frozenset[str]

    def error(self, problem: str, key: str, allowed: str | None = None) -> InputError:
        section = key.partition("[")[0]
        sections = {name.partition("[")[0] for name in self.overridden}
        given = any(f"{section}.".startswith(f"{name}.") or name.startswith(f"{section}.") for name in sections)
        return InputError(problem, file=None if given else self.file, key=key, allowed=allowed)


def _merged(path: Path, overrides: Sequence[str]) -> tuple[dict[str, Any], frozenset[str]]:
    """The file's mapping with the overrides merged in, and the overridden keys."""
    merged = _read_file(path)
    names = set()
    for override in overrides:
        name, equals, text = override.partition("=")
        if not equals or not name:
            raise InputError(f"{override!r} is not an override", allowed="key=value, such as train.steps=10")
        try:
            value = OmegaConf.to_container(OmegaConf.from_dotlist([f"value={text}"]))["value"]  # type: ignore[call-overload, index]
            OmegaConf.update(merged, name, value, force_add=True)
        # OmegaConf raises the last three for an entry that a list does not have.
        except (yaml.YAMLError, OmegaConfBaseException, IndexError, TypeError, ValueError) as error:
            raise InputError(f"cannot be read: {_one_line(error)}", key=name, allowed="a YAML value") from error
        names.add(name)
    try:
        return OmegaConf.to_container(merged, resolve=True), frozenset(names)  # type: ignore[return-value]
    except OmegaConfBaseException as error:
        raise InputError(_one_line(error), file=path, key=error.full_key) from error


def _read_file(path: Path) -> DictConfig:
    try:
        content = OmegaConf.load(path)
    except yaml.MarkedYAMLError as error:
        line = None if error.problem_mark is None else error.problem_mark.line + 1
        raise InputError(f"is not YAML: {error.problem}", file=path, line=line) from error
    except (yaml.YAMLError, UnicodeDecodeError, OmegaConfBaseException) as error:
        raise InputError(f"is not YAML: {_one_line(error)}", file=path) from error
    except OSError as error:
        # OmegaConf raises it, without an error number, for a document that is a mere scalar.
        raise InputError(error.strerror or "holds no mapping", file=path, allowed="a YAML file of keys") from error
    if not isinstance(content, DictConfig):
        raise InputError("holds no mapping", file=path, allowed="a YAML file of keys")
    return content


def _move_run_dir(raw: dict[str, Any], source: _Source) -> None:
    section = raw.get("checkpoint")
    if not isinstance(section, dict) or "run_dir" not in section:
        return
    alias = section.pop("run_dir")
    # An override wins over the file whichever of the two names it uses.
    if "checkpoint.run_dir" in source.overridden or raw.get("run_dir") is None:
        raw["run_dir"] = alias
    elif "run_dir" not in source.overridden and raw["run_dir"] != alias:
        raise source.error(f"is {alias!r}, but run_dir is {raw['run_dir']!r}", "checkpoint.run_dir", "one of the two")


def _read_section(section: type[Section], raw: object, prefix: str, source: _Source) -> Section:
    """Build a section's dataclass from a mapping; a key that is absent has its default, so has an empty section."""
    if raw is None:
        raw = {}
    if not isinstance(raw, Mapping):
        raise source.error(f"is {raw!r}", prefix.rstrip("."), "a mapping of keys")
    hints = get_type_hints(section, include_extras=True)
    values: dict[str, object] = {}
    for name, value in raw.items():
        key = f"{prefix}{name}"
        if name not in hints:
            raise source.error(
                f"is not a key; the nearest is {_nearest_key(key, [prefix + name for name in hints])}", key
            )
        hint = hints[name]
        if dataclasses.is_dataclass(hint):
            values[name] = _read_section(hint, value, f"{key}.", source)  # type: ignore[arg-type]
            continue
        if get_origin(hint) is tuple and dataclasses.is_dataclass(get_args(hint)[0]):
            values[name] = _read_list(get_args(hint)[0], value, key, source)
            continue
        try:
            values[name] = _convert(hint, value)
        except ValueError:
            raise source.error(f"is {_shown(value)}", key, describe_type(hint)) from None
    return section(**values)


def _read_list(section: type[Section], raw: object, key: str, source: _Source) -> tuple[Section, ...]:
    """Build a list of sections."""
    if not isinstance(raw, list):
        raise source.error(f"is {_shown(raw)}", key, describe_type(tuple[section, ...]))  # type: ignore[valid-type]
    return tuple(_read_section(section, item, f"{key}[{index}].", source) for index, item in enumerate(raw))


def _nearest_key(key: str, siblings: Sequence[str]) -> str:
    """The key most like this one as a whole, or in its last part where that is as good as the same."""

    def likeness(other: str) -> float:
        whole = difflib.SequenceMatcher(None, key, other).ratio()
        last = difflib.SequenceMatcher(None, key.rpartition(".")[2], other.rpartition(".")[2]).ratio()
        return max(whole, last - 0.05) + whole / 100

    return max((*config_keys(), *siblings), key=likeness)


def _convert(hint: Any, value: object) -> object:
    """Turn a YAML value into what a key's type asks for; ValueError where it is not that."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _bounded(_convert(arguments[0], value), arguments[1])
    if origin in (Union, types.UnionType):
        return _convert_to_any(arguments, value)
    if origin is Literal:
        # YAML reads a bare `off` as false.
        choice = "off" if value is False and "off" in arguments else value
        return _require(choice, isinstance(choice, str) and choice in arguments)
    if origin is tuple:
        return _convert_list(arguments, value)
    if origin is Mapping:
        return _require(value, isinstance(value, Mapping))
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is int:
        return _require(value, isinstance(value, int) and not isinstance(value, bool))
    return _require(value, isinstance(value, hint))


def _convert_to_any(hints: Sequence[Any], value: object) -> object:
    for hint in hints:
        try:
            return _convert(hint, value)
        except ValueError:
            continue
    raise ValueError(value)


def _convert_list(hints: Sequence[Any], value: object) -> tuple[object, ...]:
    if hints[-1] is Ellipsis:
        # A single text is a list of one.
        items = [value] if isinstance(value, hints[0]) else _require(value, isinstance(value, list))
        return tuple(_convert(hints[0], item) for item in items)  # type: ignore[attr-defined]
    _require(value, isinstance(value, list) and len(value) == len(hints))
    return tuple(_convert(hint, item) for hint, item in zip(hints, value, strict=True))  # type: ignore[call-overload]


def _bounded(value: object, bounds: Bounds) -> object:
    assert isinstance(value, (int, float))
    above = value > bounds.low if bounds.open_low else value >= bounds.low
    below = value < bounds.high if bounds.open_high else value <= bounds.high
    return _require(value, above and below and math.isfinite(value))


def _require(value: object, condition: bool) -> object:
    if not condition:
        raise ValueError(value)
    return value


def describe_type(hint: Any) -> str:
    """What a key allows, in words."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return f"{describe_type(arguments[0])} {_describe_bounds(arguments[1])}"
    if origin in (Union, types.UnionType):
        return " or ".join(describe_type(argument) for argument in arguments)
    if origin is Literal:
        return ", ".join(arguments)
    if origin is tuple:
        many = arguments[-1] is Ellipsis
        return f"a list{'' if many else f' of {len(arguments)}'}, each {describe_type(arguments[0])}"
    names = {bool: "true or false", int: "an integer", float: "a number", str: "a text", types.NoneType: "null"}
    return names.get(hint, "a mapping")


def _describe_bounds(bounds: Bounds) -> str:
    low = f"{'>' if bounds.open_low else '>='} {bounds.low}"
    if math.isinf(bounds.high):
        return low
    return f"{low} and {'<' if bounds.open_high else '<='} {bounds.high}"


def _shown(value: object) -> str:
    return "null" if value is None else repr(value).lower() if isinstance(value, bool) else repr(value)


def _one_line(error: Exception) -> str:
    text = getattr(error, "problem", None) or str(error)
    return str(text).partition("\n")[0]


def _resolved(config: Config, path: Path) -> Config:
    """Decide what `auto` and an empty `run_dir` stand for."""
    dtype = config.model.dtype
    wide = "float64" if dtype == "float64" else "float32"
    replay = config.replay
    state = dtype if replay.state_dtype == "auto" else replay.state_dtype
    cotangent = wide if replay.cotangent_dtype == "auto" else replay.cotangent_dtype
    replay = replace(replay, state_dtype=state, cotangent_dtype=cotangent)  # type: ignore[arg-type]
    return replace(config, replay=replay, run_dir=config.run_dir or f"runs/{path.stem}")


def _plain(value: object) -> object:
    """A value in YAML's own types, with texts that look like an interpolation escaped."""
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value.replace("${", "\\${") if isinstance(value, str) else value
