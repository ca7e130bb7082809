"""The reference of the Python interface, a page written from the code itself, so that it cannot be out of date.

Nothing is run that needs a framework: classes that need somebody's package are shown by what they are made of.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import PurePath
from types import MemberDescriptorType
from typing import Any

import joulewise
from joulewise.core import errors

_INTRODUCTION = (
    "Written from the code itself. What is here stays as it is or is announced in the changelog; what is not here may "
    "change with any version. `import joulewise` loads nothing outside the standard library. Units end the names: `_w` "
    "watts, `_j` joules, `_s` seconds, `_mhz` megahertz. What the command line does: [Command line](cli.md)."
)
_PARTS = {
    "Measure": ("Monitor", "Measurement", "gpus"),
    "Set, and have it put back": ("hold", "Lease", "Setting"),
    "Inside a training script": ("step", "phase", "metric", "should_stop", "elastic", "follow"),
}
"""The names of the package itself, by what they are for."""
_FRAMEWORKS = (
    ("joulewise.frameworks.torch", "tuning", "tuning"),
    ("joulewise.frameworks.torch", "Job", "Job"),
    ("joulewise.frameworks.huggingface", "StepCallback", "Told"),
    ("joulewise.frameworks.huggingface", "EnergyCallback", "Logged"),
    ("joulewise.frameworks.lightning", "StepCallback", "Told"),
    ("joulewise.frameworks.lightning", "EnergyCallback", "Logged"),
    ("joulewise.frameworks.wandb", "EnergyLog", "EnergyLog"),
    ("joulewise.frameworks.tensorboard", "EnergyLog", "EnergyLog"),
    ("joulewise.frameworks.energy_log", "EnergyLog", "EnergyLog"),
)
"""Module, the name in it, and the class that says what that does (one that needs no package of others)."""
_TOLD = {
    "StepCallback": (
        "A callback that tells each step, and what is no step (evaluation, saving), to `joulewise run --tune`. With "
        "`max_slowdown` it tunes from inside, without `joulewise run`. [How](frameworks.md)"
    ),
    "EnergyCallback": (
        "A callback that puts joules, watts and joules a step beside the loss, and sets nothing. "
        "[How](frameworks.md#energy-next-to-the-loss)"
    ),
}
"""What a reader should know of classes whose docstrings are for who writes them."""
_HOOKS = re.compile(r"on_[a-z_]+$")
"""Methods that a trainer calls, not a reader."""


def page() -> str:
    """The page, as Markdown."""
    parts = ["# Python", _INTRODUCTION]
    for heading, names in _PARTS.items():
        parts.append(f"## {heading}")
        for name in names:
            parts += _entry("joulewise", name, getattr(joulewise, name))
    parts.append("## Frameworks")
    for module, name, told in _FRAMEWORKS:
        parts += _entry(module, name, getattr(importlib.import_module(module), told))
    tree = inspect.cleandoc(errors.__doc__ or "").partition("::")[2].partition("\nA message")[0]
    parts += [
        "## Errors",
        "In `joulewise.core.errors`. A message is one line: what happened, the value, the limit, the",
    ]
    parts[-1] += " way out."
    parts.append(f"```text\n{inspect.cleandoc(tree)}\n```")
    return "\n\n".join(parts) + "\n"


def names() -> set[str]:
    """The names of the package that the page tells of."""
    return {name for part in _PARTS.values() for name in part}


def _entry(module: str, name: str, what: Any) -> Iterator[str]:
    yield f"### {module.removeprefix('joulewise.')}.{name}" if module != "joulewise" else f"### {name}"
    yield f"```python\nfrom {module} import {name}\n\n{name}{_signature(what)}\n```"
    yield from (_TOLD[name],) if name in _TOLD else _words(what)
    if inspect.isclass(what):
        rows = [_member(name, member) for name, member in _members(what)]
        if rows:
            yield "\n".join(("| | |", "|---|---|", *rows))


def _members(what: type) -> Iterator[tuple[str, Any]]:
    """What a class itself offers: methods and properties that say what they do."""
    for name, member in vars(what).items():
        offered = inspect.isfunction(member) or isinstance(member, property | classmethod | staticmethod)
        hidden = name.startswith("_") or _HOOKS.match(name) or isinstance(member, MemberDescriptorType)
        if offered and not hidden and inspect.getdoc(member):
            yield name, member


def _member(name: str, member: Any) -> str:
    called = member.__func__ if isinstance(member, classmethod | staticmethod) else member
    shown = name if isinstance(member, property) else f"{name}{_signature(called, bound=True)}"
    says = re.split(r"\n\s*\n", inspect.getdoc(member) or "")[0].replace("\n", " ")
    return f"| `{shown.replace('|', 'or')}` | {_escaped(says)} |"


def _signature(what: Any, *, bound: bool = False) -> str:
    """Its arguments, a line each where they are many; nothing for what nobody calls."""
    if getattr(what, "_is_protocol", False):  # nobody makes one
        return ""
    said = inspect.signature(what)
    words, named = [], False
    for each in list(said.parameters.values())[1 if bound else 0 :]:
        if each.kind is each.KEYWORD_ONLY and not named:
            words.append("*")
        named = named or each.kind in (each.KEYWORD_ONLY, each.VAR_POSITIONAL)
        stars = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        typed = f": {_type(each.annotation)}" if each.annotation is not each.empty else ""
        value = "" if each.default is each.empty else (" = " if typed else "=") + _default(each.default)
        words.append(f"{stars}{each.name}{typed}{value}")
    back = "" if inspect.isclass(what) or said.return_annotation in (None, "None") else said.return_annotation
    arrow = f" -> {_type(back)}" if back and back is not said.empty else ""
    line = f"({', '.join(words)}){arrow}"
    if bound or len(line) < 90:
        return line
    return "(\n" + "".join(f"    {word},\n" for word in words) + f"){arrow}"


def _type(said: Any) -> str:
    """A type without the folders that it is in."""
    return re.sub(
        r"\b(?:[a-z_]+\.)+([A-Z]\w*)", r"\1", said if isinstance(said, str) else inspect.formatannotation(said)
    )


def _default(value: Any) -> str:
    """A default as it would be written; dots for what is made anew each time, or is of this machine."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, PurePath):
        return repr(str(value))
    return repr(value) if value is None or isinstance(value, bool | int | float | str | tuple) else "…"


def _words(what: Any) -> Iterator[str]:
    """What it says of itself: paragraphs, lists and code as they are."""
    for paragraph in re.split(r"\n\s*\n", inspect.getdoc(what) or ""):
        if paragraph.startswith(("    ", ">>>")):
            paragraph = re.sub(r" *# doctest:.*", "", paragraph)
            yield f"```python\n{inspect.cleandoc(paragraph)}\n```"
        else:
            yield _escaped(paragraph.removesuffix("::"))


def _escaped(text: str) -> str:
    """Markdown of a docstring's words: its code is code, and nothing else of it is markup."""
    parts = re.split(r"``(.+?)``", text)
    plain = [re.sub(r"([|<>_{}\[\]])", r"\\\1", part) for part in parts[::2]]
    code = [f"`{part.replace('|', 'or')}`" for part in parts[1::2]]
    return "".join(word for pair in zip(plain, [*code, ""], strict=True) for word in pair)
