"""``joulewise config``: which defaults your files and your environment set, and which file each comes from."""

from __future__ import annotations

import json
import os
from typing import Annotated, Any

import typer

from joulewise.cli import config_files
from joulewise.core.errors import BadSpec
from joulewise.core.secrecy import masked
from joulewise.store.store import masked as without_password

_PREFIX = "JOULEWISE_"


def config(as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False) -> None:
    """Say which defaults your configuration files set, and where each comes from.

    joulewise config
    joulewise config --json | jq .defaults

    Files are TOML: a table a verb, a key an option that takes a value, as in

      [run]
      max_slowdown = "1%"

    and the nearest wins: ./joulewise.toml, or [tool.joulewise] in
    ./pyproject.toml, for what is wanted of a job;
    ~/.config/joulewise/config.toml and /etc/joulewise/config.toml for
    everything. Flags, and JOULEWISE_… variables, win over all.
    JOULEWISE_CONFIG names one file to read instead; empty: none.
    """
    said = config_files.read()
    rows = [
        {"key": ".".join(words), "value": _at(said, words), "from": str(path), "known": _known(words)}
        for words, path in said.origins.items()
    ]
    environment = {name: _shown(name, value) for name, value in sorted(os.environ.items()) if name.startswith(_PREFIX)}
    if as_json:
        files = [{"path": str(each.path), "found": each.found, "left_out": each.says} for each in said.looked]
        typer.echo(json.dumps({"defaults": rows, "environment": environment, "files": files}, default=str))
    else:
        for row in rows:
            typer.echo(f"{row['key']} = {json.dumps(row['value'], default=str)}  ({row['from']})")
        for name, value in environment.items():
            typer.echo(f"{name}={value}  (environment)")
        if not rows:
            typer.echo("no file sets a default")
        for each in said.looked:
            state = f"left out: {each.says}" if each.says else "read" if each.found else "not there"
            typer.echo(f"  {each.path}: {state}")
    if unknown := [f"{row['key']} ({row['from']})" for row in rows if not row["known"]]:
        raise BadSpec(f"no verb has such an option: {', '.join(unknown)}; see 'joulewise VERB --help'")


def _known(words: tuple[str, ...]) -> bool:
    from joulewise.cli import VERBS  # which imports this module, once it is called

    verb = VERBS.get(words[0])
    return verb is not None and len(words) > 1 and config_files.has(verb.load(words[0]), words[1:])


def _at(said: config_files.Config, words: tuple[str, ...]) -> Any:
    found: Any = said.values
    for word in words:
        found = found[word]
    return [_shown(words[-1], each) for each in found] if isinstance(found, list) else _shown(words[-1], found)


def _shown(name: str, value: Any) -> Any:
    """Without a password or a token in it."""
    if not isinstance(value, str):
        return value
    if name == "header":
        return f"{value.partition(':')[0]}: ***"
    return masked(["", f"--{name.lower()}", without_password(value)])[2]
