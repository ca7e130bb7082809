"""Who holds what: leases, parties of leases, and who asked for quiet. Memory only, and no decision but "is it free?".

What must outlive the daemon is not here: ``device/saved`` keeps what was there before a lease.
"""

from __future__ import annotations

import itertools
import secrets
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Protocol

from joulewise.core.errors import LeaseTaken, NotNow
from joulewise.core.knob import DEFAULT, Setting
from joulewise.daemon.rights import Allowed
from joulewise.daemon.timers import Timer
from joulewise.device.lease import Owner, Restored
from joulewise.device.saved_lines import Entry

MOST_PARTIES: Final = 64
"""Of one user that are remembered at a time: one for each GPU of the largest nodes."""
MOST_PARTIES_OF_ALL: Final = 4096
"""Some 4 MiB, for a user who has many numbers."""
PARTY_S: Final = 30.0
"""How long a party may take to come together: ranks of one job start within seconds of each other."""


class Client(Protocol):
    """A connection, as far as those who decide need to know it."""

    @property
    def uid(self) -> int:
        """Of the process that connected."""
        ...

    @property
    def pid(self) -> int:
        """Of that process, in the daemon's pid namespace."""
        ...

    @property
    def gid(self) -> int:
        """Its primary group."""
        ...

    @property
    def groups(self) -> frozenset[int]:
        """All its groups."""
        ...

    @property
    def command(self) -> str:
        """Its program, for people to read."""
        ...

    @property
    def started(self) -> int:
        """When it was started, in clock ticks since boot."""
        ...

    @property
    def pending(self) -> int:
        """Requests that are not answered yet."""
        ...

    @pending.setter
    def pending(self, count: int) -> None: ...

    def cgroups(self) -> tuple[str, ...]:
        """The cgroups it is in now."""
        ...

    def send(self, line: bytes) -> None:
        """Let it have a line; nothing happens if it has gone."""
        ...


class Stage(StrEnum):
    """Where a lease is in its life. In every stage it blocks others."""

    TAKING = "taking"
    HELD = "held"
    ENDING = "ending"
    """Being restored, until the last knob is back."""


@dataclass(slots=True, eq=False)
class Held:
    """One lease."""

    owner: Owner
    client: Client
    gpus: tuple[str, ...]
    knobs: frozenset[str]
    ttl_s: float
    expires_s: float
    allowed: dict[str, Allowed]
    """GPU → how far the owner may go there, and on what that rests."""
    party: Party | None = None
    stage: Stage = Stage.TAKING
    settings: dict[str, Setting] = field(default_factory=dict)
    """GPU → what was last applied there and acknowledged."""
    why: str = ""
    """Why it ends."""
    away: set[str] = field(default_factory=set)
    """GPUs that are not back yet."""
    restored: dict[str, tuple[Restored, ...]] = field(default_factory=dict)
    told: bool = False
    """Whether everybody who waited for the end has been answered."""
    waiting: list[Callable[[], None]] = field(default_factory=list)
    """What is to be done when the end has come."""
    timer: Timer | None = None
    """Which ends it when its time is up."""
    _turns: deque[Callable[[], None]] = field(default_factory=deque)
    _busy: bool = False

    @property
    def name(self) -> str:
        """Unique on this node."""
        return self.owner.lease

    def setting(self, gpu: str) -> Setting:
        """What this lease has set on ``gpu``."""
        return self.settings.get(gpu, DEFAULT)

    def in_turn(self, act: Callable[[], None]) -> None:
        """Do ``act`` when those before it are done: acts of one lease never overlap. It ends with ``next_turn``."""
        self._turns.append(act)
        if not self._busy:
            self.next_turn()

    def next_turn(self) -> None:
        """An act is done."""
        self._busy = bool(self._turns)
        if self._turns:
            self._turns.popleft()()

    def all_reports(self) -> tuple[Restored, ...]:
        """How everything that is back came back, GPU by GPU."""
        return tuple(each for gpu in self.gpus for each in self.restored.get(gpu, ()))


@dataclass(slots=True, eq=False)
class Party:
    """Leases of one user that act together or not at all."""

    uid: int
    name: str
    size: int
    until_s: float
    """When it must be complete; afterwards, how long its name is remembered."""
    members: list[Held] = field(default_factory=list)
    failed: str | None = None
    """Why it has ended, which it does once and for all."""
    complete: bool = False
    timed: bool = False
    """Whether somebody looks after its time."""


@dataclass(frozen=True, slots=True)
class Owed:
    """What a process before us has left on one GPU, and nobody could give back yet."""

    entries: tuple[Entry, ...]
    """Knob by knob; empty where not even that can be read."""
    why: str

    def listed(self, gpu: str) -> dict[str, dict[str, Any]]:
        """By lease, in the form of ``Book.listed``."""
        found: dict[str, dict[str, Any]] = {}
        for owner in dict.fromkeys(entry.owner for entry in self.entries) or (None,):
            own = [entry for entry in self.entries if entry.owner == owner]
            found[f"owed-{gpu}" if owner is None else owner.lease] = {
                "uid": None if owner is None else owner.uid,
                "pid": None if owner is None else owner.pid,
                "command": "" if owner is None else owner.command,
                "reason": "" if owner is None else owner.reason,
                "gpus": [gpu],
                "knobs": sorted(entry.knob for entry in own),
                "stage": "owed",
                "left_s": 0.0,
                "ttl_s": 0.0,
                "settings": {gpu: written} if (written := {e.knob: e.wrote[-1] for e in own if e.wrote}) else {},
                "grants": [],
                "why": self.why,
            }
        return found


class Book:
    """The tables. Every method is quick; times are seconds of the service's clock."""

    def __init__(self) -> None:
        self._leases: dict[str, Held] = {}
        self._claims: dict[tuple[str, str], Held] = {}
        self._quiet: dict[str, dict[Client, tuple[float, str]]] = {}
        self._parties: dict[tuple[int, str], Party] = {}
        self._begun: dict[int, int] = {}
        """How many of them each user has."""
        self.owed: dict[str, Owed] = {}
        """By GPU."""
        # A name must not come back after a restart, when a client may still ask for the lease of before.
        self._life = secrets.token_hex(3)
        self._numbers = itertools.count(1)

    # -- leases

    def new_name(self) -> str:
        """A name that no lease has had."""
        return f"lease-{self._life}-{next(self._numbers)}"

    def __iter__(self) -> Iterator[Held]:
        return iter(tuple(self._leases.values()))

    def __len__(self) -> int:
        return len(self._leases)

    def get(self, name: str) -> Held | None:
        """The lease of that name, in whatever stage."""
        return self._leases.get(name)

    def of(self, client: Client) -> tuple[Held, ...]:
        """The leases of one connection."""
        return tuple(held for held in self._leases.values() if held.client is client)

    def holder(self, gpu: str, knob: str) -> Held | None:
        """Who has that knob."""
        return self._claims.get((gpu, knob))

    def on(self, gpu: str) -> tuple[Held, ...]:
        """The leases that have a knob of ``gpu``."""
        return tuple(dict.fromkeys(held for (claimed, _), held in self._claims.items() if claimed == gpu))

    def leased(self) -> tuple[str, ...]:
        """GPUs of which somebody holds a knob."""
        return tuple(dict.fromkeys(gpu for gpu, _ in self._claims))

    def check_free(self, gpus: tuple[str, ...], knobs: frozenset[str], now_s: float) -> None:
        """LeaseTaken, naming owner and expiry, unless nobody holds any of it."""
        for gpu in gpus:
            for knob in sorted(knobs):
                held = self._claims.get((gpu, knob))
                if held is not None:
                    raise LeaseTaken(f"{knob} of {gpu} is {_terms(held, now_s)}")

    def claim(self, held: Held) -> None:
        """Enter a lease; ``check_free`` comes before."""
        self._leases[held.name] = held
        for gpu in held.gpus:
            held.away.add(gpu)
            for knob in held.knobs:
                self._claims[gpu, knob] = held

    def give_back(self, held: Held, gpu: str) -> None:
        """``gpu`` is as it was before: others may have it. The lease goes with its last GPU."""
        held.away.discard(gpu)
        for knob in held.knobs:
            if self._claims.get((gpu, knob)) is held:
                del self._claims[gpu, knob]
        if not held.away:
            self._leases.pop(held.name, None)

    # -- quiet

    def set_quiet(self, client: Client, gpus: tuple[str, ...], until_s: float | None, reason: str) -> bool:
        """No write on ``gpus`` until then; None ends this client's own quiet there. Whether anything has changed."""
        changed = until_s is not None
        for gpu in gpus:
            if until_s is not None:
                self._quiet.setdefault(gpu, {})[client] = (until_s, reason)
            elif gpu in self._quiet:
                changed |= self._quiet[gpu].pop(client, None) is not None
        return changed

    def check_not_quiet(self, gpu: str, now_s: float) -> None:
        """NotNow, with the time it takes, if somebody has asked for quiet on ``gpu``."""
        asked = self._quiet.get(gpu)
        if not asked:
            return
        for client, (until_s, _) in list(asked.items()):
            if until_s <= now_s:
                del asked[client]
        if asked:
            client, (until_s, reason) = max(asked.items(), key=lambda item: item[1][0])
            raise NotNow(
                f"uid {client.uid} pid {client.pid} asked for quiet on {gpu} ({reason or 'no reason given'}) "
                f"for another {until_s - now_s:.1f} s; try again then",
                retry_s=until_s - now_s,
            )

    def forget_client(self, client: Client) -> None:
        """A connection has gone: its quiet is over. Its leases end by themselves."""
        for gpu, asked in list(self._quiet.items()):
            asked.pop(client, None)
            if not asked:
                del self._quiet[gpu]

    # -- parties

    def party(self, uid: int, name: str, size: int, now_s: float) -> Party:
        """The party of that name, begun if there is none; one that is over and old is forgotten first.

        NotNow if its user has begun too many.
        """
        known = self._parties.get((uid, name))
        if known is not None and known.until_s <= now_s and (known.failed is not None or not known.members):
            known = None
        if known is None:
            if len(self._parties) >= MOST_PARTIES_OF_ALL or self._begun.get(uid, 0) >= MOST_PARTIES:
                raise NotNow(f"uid {uid} has begun {self._begun.get(uid, 0)} parties; wait for one to end", PARTY_S)
            self.forget_party(self._parties.get((uid, name)))
            known = self._parties[uid, name] = Party(uid, name, size, now_s + PARTY_S)
            self._begun[uid] = self._begun.get(uid, 0) + 1
        return known

    def known_party(self, uid: int, name: str) -> Party | None:
        """The party of that name, if somebody has begun it."""
        return self._parties.get((uid, name))

    def forget_party(self, party: Party | None) -> None:
        """Its name may be used again."""
        if party is not None and self._parties.get((party.uid, party.name)) is party:
            del self._parties[party.uid, party.name]
            self._begun[party.uid] -= 1
            if not self._begun[party.uid]:
                del self._begun[party.uid]

    # -- to be seen

    def listed(self, now_s: float) -> list[dict[str, Any]]:
        """All leases as anybody may see them, by name, and what is owed by those of before."""
        owed: dict[str, dict[str, Any]] = {}
        for gpu, each in self.owed.items():
            for name, row in each.listed(gpu).items():
                there = owed.setdefault(name, {"lease": name, **row})
                if there["gpus"] != row["gpus"]:  # one lease, several GPUs
                    there["gpus"] += row["gpus"]
                    there["knobs"] = sorted({*there["knobs"], *row["knobs"]})
                    there["settings"] |= row["settings"]
        return [
            {
                "lease": held.name,
                "uid": held.owner.uid,
                "pid": held.owner.pid,
                "command": held.owner.command,
                "reason": held.owner.reason,
                "gpus": list(held.gpus),
                "knobs": sorted(held.knobs),
                "stage": held.stage.value,
                "left_s": round(max(0.0, held.expires_s - now_s), 3),
                "ttl_s": held.ttl_s,
                "settings": {gpu: dict(setting) for gpu, setting in held.settings.items() if setting},
                "because": ", ".join(dict.fromkeys(each.because for each in held.allowed.values())),
                "grants": sorted({name for each in held.allowed.values() for name in each.grants}),
                **({"why": held.why} if held.why else {}),
            }
            for held in sorted(self._leases.values(), key=lambda held: held.name)
        ] + [owed[name] for name in sorted(owed)]


def _terms(held: Held, now_s: float) -> str:
    """By whom and until when, and what to do about it."""
    if held.stage is Stage.ENDING:
        return f"being restored after the lease of {held.owner} ({held.why}); try again in a moment"
    left_s = max(0.0, held.expires_s - now_s)
    reason = f" for {held.owner.reason!r}" if held.owner.reason else ""
    return (
        f"held by {held.owner}{reason} as {held.name}, for {left_s:.1f} s more unless renewed; "
        "wait, or ask them to release it"
    )
