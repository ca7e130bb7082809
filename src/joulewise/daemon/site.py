"""The site file: what the admin allows, and what the site's GPUs are like when joulewise has nothing set.

TOML, read at start and at SIGHUP; a key that is not known is an error, since a typing error in a rule must not pass::

    ttl_most_s = 300             # the longest a lease may live without a heartbeat
    poll_s = 1.0                 # how often leased GPUs are looked at for foreign changes, and grants for their ends
    persistence = "warn"         # persistence mode off: "warn", "refuse" a lease, or "set" it while leased

    [pace]                       # writes of one user on one GPU
    writes_per_s = 20
    burst = 40

    [baseline."*"]               # where clocks go back to; a GPU's own table ("GPU-…") goes before "*"
    sm_mhz = 1500

    [grant]                      # what a grant gives that does not say it itself
    for_s = 86400
    knobs = { power_limit_w = ["50%", "max"], sm_mhz = "any" }

    [[rule]]                     # the first rule that names this user, GPU and knob decides about that knob
    users = ["alice", 1000]      # names or numbers, or "*" for everyone
    groups = ["ml"]
    gpus = "*"                   # or UUIDs
    needs = "process"            # one of theirs runs on the GPU, and nobody else's; or "nothing"
    knobs = { power_limit_w = [300, "max"], sm_mhz = "any", memory_mhz = "none" }

A bound is a number in the knob's unit, "min", "max", or for a power limit a share of the board's default ("50%").
"any" is ["min", "max"]; "none" forbids. Without a file, or in a file without the key ``rule``, the one rule is: whoever
has a process on a GPU that no one else uses may set it, the limit from half of its default on. ``rule = []`` leaves
root and grants only.
"""

from __future__ import annotations

import grp
import math
import pwd
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeGuard, get_args

from joulewise.core.errors import BadSpec
from joulewise.core.knob import KNOBS, POWER_LIMIT_W, Setting
from joulewise.core.parsing import toml_tables
from joulewise.daemon.policy import ANY, EVERYTHING, USUAL, Bound, Needs, PaceLimits, Persistence, Policy, Range, Rule
from joulewise.device import trusted

__all__ = ["SITE", "Policy", "load", "parse"]

SITE = Path("/etc/joulewise/site.toml")

_MOST_POLL_S = 60.0
"""A grant that is taken back is noticed by then; and nobody saves anything by looking more rarely."""
_KNOBS = frozenset(knob.name for knob in KNOBS)
_GPU = re.compile(r"GPU-[0-9A-Za-z-]{1,80}")


def load(path: Path | None = SITE) -> Policy:
    """The policy of the site file; without one (None, or none at the usual place) the default.

    Raises BadSpec if it says something that is not understood, or if anybody but root could have written it.
    """
    if path is None:
        return Policy()
    try:
        text = trusted.read(path)
    except FileNotFoundError:
        if path == SITE:
            return Policy()
        raise BadSpec(f"there is no site file {path}; write one, or leave it out for the default rules") from None
    try:
        return parse(text.decode("utf-8"))
    except (BadSpec, ValueError, OverflowError, RecursionError) as error:  # no TOML, or more of it than can be held
        raise BadSpec(f"site file {path}: {error}") from error


def parse(text: str) -> Policy:
    """The policy that a site file's text declares. Raises BadSpec or tomllib.TOMLDecodeError."""
    table = _Table("", toml_tables(text))
    pace, grant = table.table("pace"), table.table("grant")
    usual = Policy()
    policy = Policy(
        rules=_rules(table),
        ttl_most_s=table.number("ttl_most_s", usual.ttl_most_s, least=1.0),
        poll_s=table.number("poll_s", usual.poll_s, least=0.05, most=_MOST_POLL_S),
        persistence=table.one_of("persistence", get_args(Persistence), usual.persistence),
        pace=PaceLimits(
            pace.number("writes_per_s", usual.pace.writes_per_s, least=0.01),
            pace.number("burst", usual.pace.burst, least=1.0),
        ),
        grant_for_s=grant.number("for_s", usual.grant_for_s, least=1.0),
        granted=_ranges(grant, usual.granted),
        baselines=_baselines(table.table("baseline")),
    )
    for each in (table, pace, grant):
        each.nothing_else()
    return policy


class _Table:
    """One table of the file, taken apart key by key; what is left over at the end is an error."""

    def __init__(self, name: str, values: object) -> None:
        if not isinstance(values, dict):
            raise BadSpec(f"{name} must be a table; write [{name}]")
        self.name = name
        self.left: dict[str, Any] = dict(values)
        self.known: set[str] = set()

    def take(self, key: str, usual: Any = None) -> Any:
        self.known.add(key)
        return self.left.pop(key, usual)

    def path(self, key: str) -> str:
        return f"{self.name}.{key}" if self.name else key

    def table(self, key: str) -> _Table:
        return _Table(self.path(key), self.take(key, {}))

    def number(self, key: str, usual: float, *, least: float, most: float | None = None) -> float:
        value = self.take(key, usual)
        if not is_number(value) or value < least:
            raise BadSpec(f"{self.path(key)} = {value!r} must be a number of at least {least:g}")
        if most is not None and value > most:
            raise BadSpec(f"{self.path(key)} = {value!r} must be a number of at most {most:g}")
        return float(value)

    def one_of(self, key: str, values: tuple[Any, ...], usual: Any) -> Any:
        value = self.take(key, usual)
        if value not in values:
            raise BadSpec(f"{self.path(key)} = {value!r} must be one of {', '.join(map(repr, values))}")
        return value

    def nothing_else(self) -> None:
        for key in self.left:
            known = ", ".join(sorted(self.known))
            raise BadSpec(f"{self.path(key)!r} is not known{f'; known are {known}' if known else ''}")


def _rules(table: _Table) -> tuple[Rule, ...]:
    """The rules in their order; the default one only where the file does not speak of rules at all."""
    listed = table.take("rule")
    if listed is None:
        return Policy().rules
    if not isinstance(listed, list):
        raise BadSpec("rule must be a list of tables; write [[rule]]")
    return tuple(_rule(_Table(f"rule {number}", each)) for number, each in enumerate(listed, 1))


def _rule(table: _Table) -> Rule:
    users, groups = table.take("users"), table.take("groups")
    if users is None and groups is None:
        raise BadSpec(f'{table.name} names neither users nor groups; write users = "*" for everyone')
    if users == EVERYTHING and groups is not None:
        raise BadSpec(f'{table.name} names groups besides users = "*", which is everyone; write one of the two')
    rule = Rule(
        users=None if users == EVERYTHING else _ids(table.path("users"), users, lambda name: pwd.getpwnam(name).pw_uid),
        groups=_ids(table.path("groups"), groups, lambda name: grp.getgrnam(name).gr_gid),
        gpus=_gpus(table.path("gpus"), table.take("gpus", EVERYTHING)),
        knobs=_ranges(table, USUAL),
        needs=table.one_of("needs", get_args(Needs), "process"),
    )
    table.nothing_else()
    return rule


def _ids(path: str, listed: object, number_of: Callable[[str], int]) -> frozenset[int]:
    """User or group numbers; names are looked up now, so that a later answer of a directory service changes nothing."""
    if listed is None:
        return frozenset()
    if not isinstance(listed, list):
        raise BadSpec(f'{path} = {listed!r} must be a list of names or numbers, or users = "*"')
    ids = set()
    for each in listed:
        if isinstance(each, str):
            try:
                ids.add(number_of(each))
            except (KeyError, ValueError):
                raise BadSpec(f"{path}: nobody here is called {each!r}; use the number, or correct the name") from None
        elif isinstance(each, int) and not isinstance(each, bool) and 0 <= each < 2**32 - 1:
            ids.add(each)
        else:
            raise BadSpec(f"{path}: {each!r} is neither a name nor a number from 0 on")
    return frozenset(ids)


def _gpus(path: str, listed: object) -> frozenset[str] | None:
    if listed == EVERYTHING:
        return None
    if not isinstance(listed, list):
        raise BadSpec(f'{path} = {listed!r} must be "*" or a list of UUIDs')
    return frozenset(gpu_name(each, path) for each in listed)


def gpu_name(name: object, where: str) -> str:
    """``name`` if it is a GPU's full UUID; BadSpec otherwise, for MIG slices too: their GPU's knobs are not theirs."""
    if not isinstance(name, str) or not _GPU.fullmatch(name):
        raise BadSpec(f"{where}: {name!r} is no GPU's UUID; write GPU-…, as 'joulewise doctor' shows it")
    return name


def _ranges(table: _Table, usual: Mapping[str, Range | None]) -> Mapping[str, Range | None]:
    listed = table.take("knobs")
    if listed is None:
        return dict(usual)
    path = table.path("knobs")
    if not isinstance(listed, dict):
        raise BadSpec(f"{path} must be a table of knobs and ranges")
    return {knob_name(knob, path): _range(f"{path}.{knob}", knob, value) for knob, value in listed.items()}


def knob_name(name: str, where: str) -> str:
    """``name`` if a knob is called so; BadSpec otherwise."""
    if name not in _KNOBS:
        raise BadSpec(f"{where}: no knob is called {name!r}; knobs are {', '.join(sorted(_KNOBS))}")
    return name


def _range(path: str, knob: str, value: object) -> Range | None:
    if value == "none":
        return None
    if value == "any":
        return ANY
    if not isinstance(value, list) or len(value) != 2:
        raise BadSpec(f'{path} = {value!r} must be [low, high], "any" or "none"')
    low, high = (_bound(path, knob, each, end) for each, end in zip(value, ("min", "max"), strict=True))
    for one, other in ((low.value, high.value), (low.share, high.share)):
        if one is not None and other is not None and one > other:
            raise BadSpec(f"{path} = {value!r} runs downwards; write the lower bound first")
    return Range(low, high)


def _bound(path: str, knob: str, value: object, end: str) -> Bound:
    """One end; ``end`` is the word for the hardware's own end on that side."""
    if value == end:
        return Bound()
    if is_number(value) and value >= 0:
        return Bound(value=float(value))
    if isinstance(value, str) and (percent := re.fullmatch(r"(\d{1,3}(?:\.\d{1,3})?)\s*%", value)):
        if knob != POWER_LIMIT_W.name:
            raise BadSpec(f"{path}: {value!r} is a share of the default limit, which clocks do not have; write MHz")
        return Bound(share=float(percent.group(1)) / 100)
    raise BadSpec(f"{path}: {value!r} must be a number from 0 on, {end!r} or a share such as '50%'")


def _baselines(table: _Table) -> Mapping[str, Setting]:
    baselines = {}
    for gpu, values in table.left.items():
        where = f"baseline.{gpu}"
        name = gpu if gpu == EVERYTHING else gpu_name(gpu, "baseline")
        if not isinstance(values, dict):
            raise BadSpec(f'{where} must be a table; write [baseline."{gpu}"]')
        for knob, value in values.items():
            if knob_name(knob, where) == POWER_LIMIT_W.name:
                raise BadSpec(f"{where}: only clocks have a baseline; a power limit goes back to what was there before")
            if not is_number(value) or value <= 0:
                raise BadSpec(f"{where}.{knob} = {value!r} must be a number above 0")
        baselines[name] = Setting(**{knob: float(value) for knob, value in values.items()})
    return baselines


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a finite number (TOML has inf, nan and booleans, and Python calls the last ones numbers)."""
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # a whole number that no float can hold
        return False
