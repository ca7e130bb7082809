"""Who controls this machine's GPUs: the daemon and its leases, the files of a joulewise that died, the site's rules.

Asked once a checkup. It only looks: it takes no lease and no lock, since a look must not be in anybody's way.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import joulewise
from joulewise.cli.finding import Finding
from joulewise.core.errors import BadSpec, JoulewiseError, NoDaemon, NotPermitted, NotSaved
from joulewise.core.knob import Space
from joulewise.daemon import rights, site
from joulewise.daemon.policy import Policy
from joulewise.daemon.rights import Asking, Seen
from joulewise.device import wire
from joulewise.device.remote import DaemonClient
from joulewise.device.saved import STATE, Saved

_START = "root starts it with 'joulewise daemon'; it lets users set their own GPUs and puts all back"
_LONGEST_ANSWER_S = 2.0  # a daemon answers these in milliseconds; one that does not is as good as none


@dataclass(frozen=True, slots=True)
class Daemon:
    """A daemon that answers, and what it says."""

    version: str
    uid: int
    """Who we are to it, which in a container may not be what we are to ourselves."""
    gpus: tuple[str, ...]
    leases: tuple[Mapping[str, Any], ...]

    def holder(self, gpu: str, knob: str) -> str | None:
        """Whose lease covers ``knob`` of ``gpu``; None if nobody's does."""
        for lease in self.leases:
            if gpu in lease["gpus"] and knob in lease["knobs"]:
                command = f" ({lease['command']})" if lease.get("command") else ""
                return f"uid {lease['uid']} pid {lease['pid']}{command}"
        return None


@dataclass(frozen=True, slots=True)
class Control:
    """Everything about control that is not about one GPU alone."""

    findings: tuple[Finding, ...] = ()
    daemon: Daemon | None = None
    policy: Policy | None = None
    """The site's rules, as its file has them; None if that cannot be read."""
    owed: frozenset[str] = field(default=frozenset())
    """GPUs for which a joulewise that is dead has left something to be undone."""
    held: Mapping[str, int] = field(default_factory=dict)
    """GPU → pid of the living process that keeps its file, where that can be seen."""

    def holder(self, gpu: str, knob: str) -> str | None:
        """Who of us holds ``knob`` of ``gpu``, as far as can be told."""
        if self.daemon is not None:
            return self.daemon.holder(gpu, knob)
        return f"pid {self.held[gpu]}" if gpu in self.held else None

    def ranges(
        self, gpu: str, space: Space, default_limit_w: float | None, seen: Seen
    ) -> tuple[dict[str, tuple[float, float]], str | None]:
        """What the site's rules let us set through the daemon, knob by knob, and why not if nothing.

        Grants are not ours to see; with one, the daemon may allow more.
        """
        assert self.daemon is not None
        if self.policy is None:
            return {}, "its rules cannot be read here"
        allowed: dict[str, tuple[float, float]] = {}
        why: str | None = None
        groups = frozenset((os.getegid(), *os.getgroups()))
        for knob in space.knobs:
            asking = Asking(self.daemon.uid, groups, (), gpu, frozenset({knob}))
            try:
                allowed |= rights.decide(asking, self.policy, (), seen, space, default_limit_w).ranges
            except NotPermitted as error:
                why = why or str(error).partition(": ")[2].partition("; ")[0]
        return allowed, why if not allowed else None


def look(environ: Mapping[str, str] = os.environ, state: Path = STATE) -> Control:
    """Ask the daemon and look at the files. Never raises for what is missing."""
    path = wire.socket_path(environ)
    daemon, said = _daemon(path)
    owed, held = _files(state)
    if daemon is not None:
        owed -= set(daemon.gpus)  # whose files it keeps, even where its process cannot be seen from here
    findings = [said]
    if owed:
        number = f"{len(owed)} GPU{'' if len(owed) == 1 else 's'}"
        says = f"{state} keeps what a joulewise that is gone had set on {number}"
        do = "start the daemon, or as root: 'joulewise restore'"
        findings.append(Finding("left behind", None, says, do))
    try:
        policy = site.load()
    except BadSpec as error:
        policy = None
        says, _, do = str(error).partition("; ")
        findings.append(Finding("site file", False, says, do or None))
    return Control(tuple(findings), daemon, policy, owed, held)


def _daemon(path: Path) -> tuple[Daemon | None, Finding]:
    try:
        daemon = ask(path)
    except NoDaemon as error:
        return None, Finding("daemon", None, str(error).partition("; ")[0], _START)
    leases = f"{len(daemon.leases)} lease{'' if len(daemon.leases) == 1 else 's'}"
    says = f"version {daemon.version} on {path}, {leases}"
    if daemon.version != joulewise.__version__:
        return daemon, Finding("daemon", None, f"{says}; this is {joulewise.__version__}", "restart the daemon")
    return daemon, Finding("daemon", True, says)


def ask(path: Path) -> Daemon:
    """What the daemon on ``path`` says of itself and its leases. NoDaemon if none answers, or none that we know."""
    try:
        with DaemonClient(path, answer_s=_LONGEST_ANSWER_S) as client:
            hello = client.hello
            return Daemon(str(hello["version"]), int(hello["uid"]), tuple(hello["gpus"]), tuple(client.leases()))
    except NoDaemon:
        raise
    except (JoulewiseError, KeyError, TypeError, ValueError) as error:
        raise NoDaemon(f"what answers on {path} is not understood ({error}); restart the daemon") from None


def _files(directory: Path) -> tuple[frozenset[str], dict[str, int]]:
    """GPUs with a file that nobody alive keeps, and those with one that somebody does. Root's to see."""
    try:
        known = Saved.known(directory)
    except NotSaved:
        return frozenset(), {}
    keepers = {uuid: _keeper(directory / f"{uuid}.lock") for uuid in known}
    held = {uuid: pid for uuid, pid in keepers.items() if pid is not None}
    return frozenset(known) - held.keys(), held


def _keeper(lock: Path) -> int | None:
    """The process that has signed ``lock`` and still has it open: trying to lock it could be in its owner's way."""
    try:
        pid = int(lock.read_text("utf-8", "replace").partition(" ")[0])
        descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
    except (OSError, ValueError):
        return None
    for descriptor in descriptors:
        with suppress(OSError):
            if descriptor.samefile(lock):
                return pid
    return None
