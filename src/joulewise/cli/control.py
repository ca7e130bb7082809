"""Who controls this machine's GPUs: the daemon and its leases, the files of a joulewise that died, the site's rules.

Asked once a checkup. It only looks: it takes no lease and no lock, since a look must not be in anybody's way.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import joulewise
from joulewise.cli import records
from joulewise.cli.finding import Finding
from joulewise.core.errors import BadSpec, JoulewiseError, NoDaemon, NotPermitted
from joulewise.daemon import site
from joulewise.daemon.policy import Policy
from joulewise.device import wire
from joulewise.device.remote_client import DaemonClient
from joulewise.device.saved import STATE, command_of

_START = "root starts it with 'joulewise daemon'; it lets users set their own GPUs and puts all back"
_LONGEST_ANSWER_S = 2.0  # a daemon answers these in milliseconds; one that does not is as good as none
_MOST_GPUS = 64  # to be asked about at once: far more than a node has


@dataclass(frozen=True, slots=True)
class Holder:
    """Whose lease covers a knob."""

    who: str
    wrote: float | None
    """What that lease has set there; None if nothing."""


@dataclass(frozen=True, slots=True)
class Daemon:
    """A daemon that answers, and what it says."""

    version: str
    uid: int
    """Who we are to it, which in a container may not be what we are to ourselves."""
    gpus: tuple[str, ...]
    leases: tuple[Mapping[str, Any], ...]
    may: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """GPU → what it would let us set: ``knobs`` (knob → lowest, highest) and ``because``, or ``why`` not."""

    def holder(self, gpu: str, knob: str) -> Holder | None:
        """Whose lease covers ``knob`` of ``gpu``; None if nobody's does."""
        for lease in self.leases:
            if gpu in lease["gpus"] and knob in lease["knobs"] and lease["stage"] != "owed":
                command = f" ({lease['command']})" if lease.get("command") else ""
                wrote = lease.get("settings", {}).get(gpu, {}).get(knob)
                return Holder(f"uid {lease['uid']} pid {lease['pid']}{command}", wrote)
        return None

    @property
    def unknown(self) -> dict[str, str]:
        """GPUs of which nobody knows what was there before a lease, and why."""
        owed = [lease for lease in self.leases if lease["stage"] == "owed" and not lease["knobs"]]
        return {gpu: str(lease.get("why", "")) for lease in owed for gpu in lease["gpus"]}

    @property
    def owed(self) -> frozenset[str]:
        """GPUs on which it could not yet give back what a process before it had set."""
        return frozenset(gpu for lease in self.leases if lease["stage"] == "owed" for gpu in lease["gpus"])


@dataclass(frozen=True, slots=True)
class Control:
    """Everything about control that is not about one GPU alone."""

    findings: tuple[Finding, ...] = ()
    daemon: Daemon | None = None
    policy: Policy | None = None
    """The site's rules, as its file has them; None if that cannot be read."""
    owed: frozenset[str] = field(default=frozenset())
    """GPUs for which a joulewise that is dead has left something to be undone."""
    kept: Mapping[str, records.Record] = field(default_factory=dict)
    """GPU → its file, where we may read it."""
    sees_files: bool = True
    """Whether we may read them."""

    @property
    def sure(self) -> bool:
        """Whether a setting that neither daemon nor file tells of is none of joulewise's."""
        return self.daemon is not None and self.sees_files

    def holder(self, gpu: str, knob: str) -> Holder | None:
        """Who of us holds ``knob`` of ``gpu``, as far as can be told."""
        held = None if self.daemon is None else self.daemon.holder(gpu, knob)
        record = self.kept.get(gpu)
        if held is not None or record is None or record.keeper is None or knob not in record.entries:
            return held
        entry = record.entries[knob]
        who = f"pid {record.keeper} ({command_of(record.keeper)})" if record.local else str(entry.owner)
        return Holder(who, entry.wrote[-1] if entry.wrote else None)

    def standing(self, gpu: str, knob: str) -> float | None:
        """The lock that joulewise was told to keep there between leases, where we may know it."""
        record = self.kept.get(gpu)
        return None if record is None else record.standing.get(knob)

    def ranges(self, gpu: str) -> tuple[dict[str, tuple[float, float]], str | None]:
        """What the daemon lets us set on ``gpu``, knob by knob; if nothing, why not."""
        assert self.daemon is not None
        said = self.daemon.may.get(gpu, {})
        allowed = {knob: (float(low), float(high)) for knob, (low, high) in said.get("knobs", {}).items()}
        return allowed, None if allowed else _reason(str(said.get("why") or "it does not say why"))


def _reason(refusal: str) -> str:
    """The reason alone of "uid 7 may not set power_limit_w on GPU-1: nothing of yours runs there; an admin …"."""
    first = refusal.partition("; ")[0]
    who, _, reason = first.partition(": ")
    return reason if reason and who.startswith("uid ") else first


def look(environ: Mapping[str, str] = os.environ, state: Path = STATE, present: Collection[str] = ()) -> Control:
    """Ask the daemon and look at the files. Never raises for what is missing. ``present``: the GPUs that are there."""
    path = wire.socket_path(environ)
    daemon, said = _daemon(path)
    kept = {record.uuid: record for record in records.records(state)}
    owed = frozenset(uuid for uuid, record in kept.items() if record.owed)
    if daemon is not None:
        # Whose files it keeps, even where its process cannot be seen from here; but it tells what it owes.
        owed = owed - set(daemon.gpus) | daemon.owed
    unknown = {uuid: record.unknown for uuid, record in kept.items() if record.owed and record.unknown}
    if daemon is not None:
        unknown |= daemon.unknown
    findings = [said, *_lost(unknown), *_left(owed - set(unknown), present, state)]
    try:
        policy = site.load()
    except BadSpec as error:
        policy = None
        says, _, do = str(error).partition("; ")
        findings.append(Finding("site file", False, says, do or None))
    return Control(tuple(findings), daemon, policy, owed, kept, records.can_see(state))


def _lost(unknown: Mapping[str, str]) -> list[Finding]:
    """GPUs that are perhaps as a lease has left them, and of which nobody knows how they were."""
    found = []
    for uuid, why in sorted(unknown.items()):
        says, _, do = why.partition("; ")
        found.append(Finding("unsafe", False, says if uuid in says else f"{uuid}: {says}", do or None))
    return found


def _left(owed: frozenset[str], present: Collection[str], state: Path) -> list[Finding]:
    """What nobody alive is about to undo: on GPUs that are there, and on such as are not."""
    found = []
    if here := owed & set(present):
        number = f"{len(here)} GPU{'' if len(here) == 1 else 's'}"
        says = f"{state} keeps what a joulewise that is gone had set on {number}"
        found.append(Finding("left behind", None, says, "start the daemon, or as root: 'joulewise restore'"))
    for uuid in sorted(owed - set(present)):
        says = f"{state} keeps what was set on {uuid}, which is not there (any more)"
        do = f"if it is gone for good, as root: 'joulewise restore --forget {uuid}'"
        found.append(Finding("left behind", None, says, do))
    return found


def _daemon(path: Path) -> tuple[Daemon | None, Finding]:
    try:
        daemon = ask(path)
    except NoDaemon as error:
        return None, Finding("daemon", None, str(error).partition("; ")[0], _START)
    except NotPermitted as error:
        says, _, do = str(error).partition("; ")
        return None, Finding("daemon", None, says, do)
    leases = f"{len(daemon.leases)} lease{'' if len(daemon.leases) == 1 else 's'}"
    says = f"version {daemon.version} on {path}, {leases}"
    if daemon.version != joulewise.__version__:
        return daemon, Finding("daemon", None, f"{says}; this is {joulewise.__version__}", "restart the daemon")
    return daemon, Finding("daemon", True, says)


def ask(path: Path) -> Daemon:
    """What the daemon on ``path`` says of itself and its leases, and lets us set.

    NoDaemon if none answers, or none that we know; NotPermitted if we may not knock.
    """
    try:
        with DaemonClient(path, answer_s=_LONGEST_ANSWER_S) as client:
            gpus = tuple(client.hello["gpus"])
            may = client.may(list(gpus[:_MOST_GPUS])) if gpus else {}
            hello = client.hello
            return Daemon(str(hello["version"]), int(hello["uid"]), gpus, tuple(client.leases()), may)
    except (NoDaemon, NotPermitted):
        raise
    except (JoulewiseError, KeyError, TypeError, ValueError) as error:
        raise NoDaemon(f"what answers on {path} is not understood ({error}); restart the daemon") from None
