"""Defaults from files: what a machine, a user or a project wants of every command, without typing it.

A table a verb, a key an option, named as on the command line with ``_`` for ``-``::

    [run]
    max_slowdown = "1%"

    [recur.run]
    eta = 0.7

Of several files the nearest wins, key by key: ``./joulewise.toml`` (or ``[tool.joulewise]`` in ``./pyproject.toml``),
then the user's, then the machine's. What the environment says wins over all of them, and what is typed over that.
``JOULEWISE_CONFIG`` names one file to read instead; empty: none.

A default can always be taken back by typing: so a flag that has no opposite is none. And a file in the current folder
may come from anybody whose repository was cloned: it says what is wanted of a job (``WANTED``), never where things are
kept, sent or listened to, nor that virtual GPUs stand for real ones; and one that is somebody else's says nothing at
all, least of all to root.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from joulewise.core.errors import BadSpec
from joulewise.core.parsing import toml_tables

VARIABLE: Final = "JOULEWISE_CONFIG"
MACHINE: Final = Path("/etc/joulewise/config.toml")
_AIMS: Final = {"max_slowdown", "objective", "eta", "deadline", "power_budget", "energy_budget", "tune"}
_WORTH: Final = {"kwh_price", "gpu_hour_price", "host_watts", "currency", "carbon_g_per_kwh", "carbon_source"}
_SERIES: Final = {"job", "batch_sizes", "default", "target", "max_epochs", "lr", "lr_rule", "metric_pattern", "grace"}
_LOOKS: Final = {"gpu", "speed", "seed", "interval", "live", "stop_at_target", "n"}
WANTED: Final = frozenset(_AIMS | _WORTH | _SERIES | _LOOKS)
"""Keys that a file in the current folder may have."""
_GPU: Final = "gpu"
_VIRTUAL: Final = frozenset({"sim", "replay"})
_SIMULATING: Final = {("sim",), ("cluster", "simulate"), ("cluster", "explain")}
"""Verbs whose GPUs are virtual whatever is said, and who says so with every result."""
_PROJECT: Final = Path("joulewise.toml")
_PYPROJECT: Final = Path("pyproject.toml")
_ASK: Final = "joulewise config"
_MOST_BYTES: Final = 1 << 20
_NEVER: Final = frozenset({"help", "yes", "forget"})
_READ: Final = re.compile(r"\$(JOULEWISE_\w+)")
"""In an option's help: the variable that is read where it is not given."""


@dataclass(frozen=True, slots=True)
class Looked:
    """One place that was looked at, the farthest first. ``says``: why it is left out; empty where it is not."""

    path: Path
    found: bool
    says: str = ""
    foreign: bool = False
    """Whether it is left out because it is somebody else's."""


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
    for path, near in _places():
        about, tables = _read(path, near=near)
        looked.append(about)
        for words, value in _flat(tables):
            if near and words[-1] not in WANTED:
                raise BadSpec(
                    f"{'.'.join(words)} in {path}: a file in the current folder says what is wanted of a job, and may "
                    "not set that; put it into your own (~/.config/joulewise/config.toml)"
                )
            if near and words[-1] == _GPU and words[:-1] not in _SIMULATING:
                _refuse_virtual(words, value, path)
            _put(values, words, value)
            origins[words] = path
    return Config(values, origins, tuple(looked))


def defaults(command: Any, ctx: Any, typed: Set[str]) -> tuple[dict[str, Any], list[str]]:
    """What the files say of ``command``, by the library's names for its options, but for what is ``typed``; and remarks
    for whoever asked. BadSpec for a table of no verb, a key that is none of its options, and a value that is none."""
    words = ctx.command_path.split()[1:]
    if not words or words == ["config"]:  # the root has none; and 'config' shows what is wrong with them
        return {}, []
    config = read()
    said = config.values
    for verb, table in said.items():
        if verb not in ctx.find_root().command.list_commands(ctx) or not isinstance(table, Mapping):
            raise BadSpec(f"a configuration file has '{verb}', which is no verb's table; see '{_ASK}'")
    for word in words:
        said = said.get(word, {})
        if not isinstance(said, Mapping):
            raise BadSpec(f"a configuration file has '{word}' as a value, and it is a verb's table; see '{_ASK}'")
    options = {_key(each): each for each in command.get_params(ctx) if _may_be_set(each)}
    verbs = command.list_commands(ctx) if hasattr(command, "list_commands") else ()
    found = {}
    for key, value in said.items():
        if key in verbs and isinstance(value, Mapping):
            continue
        at = f"'{key}' in [{'.'.join(words)}] of {config.origins.get((*words, key), 'a configuration file')}"
        if key not in options:
            raise BadSpec(
                f"{at} is no option of '{ctx.command_path}' that a file may set; see 'joulewise config --help'"
            )
        if not _overruled(key, options, typed):
            found[options[key].name] = _fitting(at, options[key], value)
    return found, [f"{each.path} is left out: {each.says}" for each in config.looked if each.foreign]


def has(command: Any, words: tuple[str, ...]) -> bool:
    """Whether ``command`` has the option that these words name: of itself, or of a verb of its own."""
    if len(words) > 1:
        verb = getattr(command, "commands", {}).get(words[0])
        return verb is not None and has(verb, words[1:])
    return any(_key(each) == words[0] for each in command.params if _may_be_set(each))


def _overruled(key: str, options: Mapping[str, Any], typed: Set[str]) -> bool:
    """Whether the environment, or something that is typed and excludes it, wins over this key."""
    if _in_environment(options[key]):
        return True
    if key == "token_file" and "no_auth" in options and typed & {"no_auth", "socket"}:
        return True
    if not {"database", "server"} <= options.keys():
        return False
    # Of these two one is meant; a token goes with the server.
    database = "database" in typed or ("server" not in typed and _in_environment(options["database"]))
    return database if key in ("server", "token_file") else key == "database" and "server" in typed


def _in_environment(option: Any) -> bool:
    """Whether a variable that this option reads is set."""
    return any(os.environ.get(name) for name in _READ.findall(option.help or ""))


def _fitting(at: str, option: Any, value: Any) -> Any:
    """The value as the library takes it. BadSpec where it is of a kind that cannot be typed."""
    several = option.multiple or option.nargs != 1
    if several and not isinstance(value, list):
        value = [value]
    parts = value if isinstance(value, list) else [value]
    if isinstance(value, list) and not several:
        raise BadSpec(f"{at} is a list, and one value is wanted")
    for part in parts:
        if isinstance(part, bool) is not bool(option.is_flag) or not isinstance(part, (str, int, float)):
            kind = "true or false" if option.is_flag else "a text or a number"
            raise BadSpec(f"{at} is {str(part)[:60]!r}, and {kind} is wanted")
    return value


def _places() -> Iterator[tuple[Path, bool]]:
    """Where to look, the farthest first, and whether it is just what lies in the current folder."""
    named = os.environ.get(VARIABLE)
    if named is not None:
        if named:
            yield Path(named), False
        return
    yield MACHINE, False
    with suppress(RuntimeError):  # a container's user may have no home
        named = os.environ.get("XDG_CONFIG_HOME", "")
        yield (Path(named) if named.startswith("/") else Path.home() / ".config") / "joulewise" / "config.toml", False
    yield _PYPROJECT, True
    yield _PROJECT, True


def _read(path: Path, *, near: bool) -> tuple[Looked, Mapping[str, Any]]:
    try:
        # A pipe would wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        if os.environ.get(VARIABLE):
            raise BadSpec(f"{VARIABLE} names {path}, which is not there") from None
        return Looked(path, found=False), {}
    except OSError as error:
        return Looked(path, found=True, says=(error.strerror or str(error)).lower()), {}
    with os.fdopen(descriptor, "rb") as file:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            return Looked(path, found=True, says="it is no plain file"), {}
        data = file.read(_MOST_BYTES + 1)
    shared = path.name == _PYPROJECT.name
    ours = not shared or b"tool.joulewise" in data
    if near and ours and about.st_uid not in (0, os.geteuid()):
        return Looked(path, found=True, says="it belongs to somebody else", foreign=True), {}
    if not ours:
        return Looked(path, found=True, says="it has no [tool.joulewise]"), {}
    tables = _parsed(path, data)
    for word in ("tool", "joulewise") if shared else ():
        tables = tables.get(word, {})
        if not isinstance(tables, Mapping):
            raise BadSpec(f"{path} has '{word}' as something else than a table; write [tool.joulewise.VERB]")
    return Looked(path, found=True), tables


def _refuse_virtual(words: tuple[str, ...], value: Any, path: Path) -> None:
    """BadSpec where ``gpu`` of a file in the current folder names virtual GPUs: what a run measures and saves there
    would look like a saving of real ones."""
    for spec in value if isinstance(value, list) else [value]:
        if str(spec).strip().partition(":")[0].strip().lower() in _VIRTUAL:
            raise BadSpec(
                f"{'.'.join(words)} in {path} is {str(spec)[:40]!r}: a file in the current folder may not put virtual "
                f"or recorded GPUs in the place of real ones; type --gpu {str(spec)[:40]}, or put it into your own "
                "(~/.config/joulewise/config.toml)"
            )


def _parsed(path: Path, data: bytes) -> Mapping[str, Any]:

    if len(data) > _MOST_BYTES:
        raise BadSpec(f"{path} is longer than a configuration file may be ({_MOST_BYTES // 1024} KiB)")
    try:
        return toml_tables(data.decode())
    except ValueError as error:
        raise BadSpec(f"{path} is no TOML: {error}; mend it, or set {VARIABLE} to nothing to leave it out") from error


def _flat(tables: Mapping[str, Any], words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in tables.items():
        if isinstance(value, Mapping):
            yield from _flat(value, (*words, key))
        else:
            yield (*words, key), value


def _put(values: dict[str, Any], words: tuple[str, ...], value: Any) -> None:
    for word in words[:-1]:
        if not isinstance(values.get(word), dict):
            values[word] = {}
        values = values[word]
    values[words[-1]] = value


def _key(option: Any) -> str:
    """``max_slowdown`` of ``--max-slowdown``."""
    long = next((name for name in option.opts if name.startswith("--")), option.opts[0])
    return str(long).lstrip("-").replace("-", "_")


def _may_be_set(option: Any) -> bool:
    """Options alone: what to run, or on what, is typed. Nor what only answers and ends, gives consent, or could not be
    taken back."""
    if option.param_type_name != "option" or option.is_eager or _key(option) in _NEVER:
        return False
    return bool(option.secondary_opts) or not option.is_flag


def from_a_file(ctx: Any, flag: str) -> bool:
    """Whether the value of ``--flag`` is a default that stands in a file."""
    source = ctx.get_parameter_source(flag.lstrip("-").replace("-", "_"))
    return source is not None and source.name == "DEFAULT_MAP"
