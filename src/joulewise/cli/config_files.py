"""Defaults from files: what a machine, a user or a project wants of every command, without typing it.

A table a verb, a key an option, named as on the command line with ``_`` for ``-``::

    [run]
    max_slowdown = "1%"

    [recur.run]
    eta = 0.7

Of several files the nearest wins, key by key: ``./joulewise.toml`` (or ``[tool.joulewise]`` in ``./pyproject.toml``),
then the user's, then the machine's. What is typed, and what the environment says, wins over all of them: the
command-line library sees to that. ``JOULEWISE_CONFIG`` names one file to read instead; empty: none.

A file in the current folder is believed only if it belongs to whoever runs the command, or to root: a folder of
somebody else's must not say what root's command does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from joulewise.core.errors import BadSpec

VARIABLE: Final = "JOULEWISE_CONFIG"
MACHINE: Final = Path("/etc/joulewise/config.toml")
_PROJECT: Final = Path("joulewise.toml")
_PYPROJECT: Final = Path("pyproject.toml")
_MOST_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Looked:
    """One place that was looked at, the farthest first. ``says``: why it is left out; empty where it is not."""

    path: Path
    found: bool
    says: str = ""


@dataclass(frozen=True, slots=True)
class Config:
    """What the files say together. ``origins``: the file of every key, by its words (``("run", "max_slowdown")``)."""

    values: Mapping[str, Any] = field(default_factory=dict)
    origins: Mapping[tuple[str, ...], Path] = field(default_factory=dict)
    looked: tuple[Looked, ...] = ()


def read() -> Config:
    """All files that there are, the nearest first in rank. BadSpec, naming file and place, for one that is no TOML."""
    values: dict[str, Any] = {}
    origins: dict[tuple[str, ...], Path] = {}
    looked = []
    for path, strict in _places():
        about, tables = _read(path, strict=strict)
        looked.append(about)
        for words, value in _flat(tables):
            _put(values, words, value)
            origins[words] = path
    return Config(values, origins, tuple(looked))


def defaults(command: Any, ctx: Any) -> dict[str, Any]:
    """What the files say of ``command``, by the library's names for its options. BadSpec for a table of no verb, and
    for a key that is none of its options."""
    words = ctx.command_path.split()[1:]
    if not words or words == ["config"]:  # the root has none; and 'config' shows what is wrong with them
        return {}
    said = read().values
    for verb, table in said.items():
        if verb not in ctx.find_root().command.list_commands(ctx) or not isinstance(table, Mapping):
            raise BadSpec(f"a configuration file has '{verb}', which is no verb's table; see 'joulewise config'")
    for word in words:
        said = said.get(word, {})
    names = {_key(each): each.name for each in command.get_params(ctx) if _may_be_set(each)}
    verbs = command.list_commands(ctx) if hasattr(command, "list_commands") else ()
    found = {}
    for key, value in said.items():
        if key in names and not isinstance(value, Mapping):
            found[names[key]] = value
        elif key not in verbs or not isinstance(value, Mapping):
            raise BadSpec(
                f"'{key}' in [{'.'.join(words)}] of a configuration file is no option of '{ctx.command_path}'; "
                f"see '{ctx.command_path} --help', and 'joulewise config' for the file"
            )
    return found


def has(command: Any, words: tuple[str, ...]) -> bool:
    """Whether ``command`` has the option that these words name: of itself, or of a verb of its own."""
    if len(words) > 1:
        verb = getattr(command, "commands", {}).get(words[0])
        return verb is not None and has(verb, words[1:])
    return any(_key(each) == words[0] for each in command.params if _may_be_set(each))


def _places() -> Iterator[tuple[Path, bool]]:
    """Where to look, the farthest first; and whether whose file it is matters."""
    named = os.environ.get(VARIABLE)
    if named is not None:
        if named:
            yield Path(named), False
        return
    yield MACHINE, False
    home = os.environ.get("XDG_CONFIG_HOME")
    yield (Path(home) if home else Path.home() / ".config") / "joulewise" / "config.toml", False
    yield _PYPROJECT, True
    yield _PROJECT, True


def _read(path: Path, *, strict: bool) -> tuple[Looked, Mapping[str, Any]]:
    try:
        with path.open("rb") as file:
            owner = os.fstat(file.fileno()).st_uid
            data = file.read(_MOST_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        if path == Path(os.environ.get(VARIABLE, "")):
            raise BadSpec(f"{VARIABLE} names {path}, which is not there") from None
        return Looked(path, found=False), {}
    except OSError as error:
        return Looked(path, found=True, says=(error.strerror or str(error)).lower()), {}
    if strict and owner not in (0, os.geteuid()):
        return Looked(path, found=True, says="it belongs to somebody else"), {}
    if strict and path == _PYPROJECT and b"joulewise" not in data:
        return Looked(path, found=True, says="it has no [tool.joulewise]"), {}
    tables = _parsed(path, data)
    if path == _PYPROJECT:
        tool = tables.get("tool")
        ours = tool.get("joulewise") if isinstance(tool, Mapping) else None
        if not isinstance(ours, Mapping):
            return Looked(path, found=True, says="it has no [tool.joulewise]"), {}
        tables = ours
    return Looked(path, found=True), tables


def _parsed(path: Path, data: bytes) -> Mapping[str, Any]:
    import tomllib

    if len(data) > _MOST_BYTES:
        raise BadSpec(f"{path} is longer than a configuration file may be ({_MOST_BYTES // 1024} KiB)")
    try:
        return tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSpec(f"{path} is no TOML: {error}; mend it, or set {VARIABLE} to nothing to leave it out") from error


def _flat(tables: Mapping[str, Any], words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in tables.items():
        if isinstance(value, Mapping):
            yield from _flat(value, (*words, key))
        else:
            yield (*words, key), value


def _put(values: dict[str, Any], words: tuple[str, ...], value: Any) -> None:
    for word in words[:-1]:
        inner = values.get(word)
        values = values.setdefault(word, {}) if isinstance(inner, dict) else _new(values, word)
    values[words[-1]] = value


def _new(values: dict[str, Any], word: str) -> dict[str, Any]:
    made: dict[str, Any] = {}
    values[word] = made
    return made


def _key(option: Any) -> str:
    """``max_slowdown`` of ``--max-slowdown``."""
    long = next((name for name in option.opts if name.startswith("--")), option.opts[0])
    return str(long).lstrip("-").replace("-", "_")


def _may_be_set(option: Any) -> bool:
    """Options alone: what to run, or on what, is typed. Nor what only answers and ends, or gives consent."""
    return option.param_type_name == "option" and not option.is_eager and _key(option) not in ("help", "yes", "forget")
