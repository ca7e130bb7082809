"""The lease: the only way to write hardware, and what it promises. Implementations: ``local``, ``remote``.

A lease is one owner's right to turn some knobs of some GPUs for a while; there is one per (GPU, knob). What it
promises is what the driver allows:

- A **power limit** can be read. What was there is saved durably before the first write and comes back exactly when
  the lease ends, however it ends, unless somebody else has changed it meanwhile: then theirs stays, and is reported.
- **Locked clocks** cannot be read. They go back to the standing lock that joulewise itself had set and journalled
  before, else to the baseline that the site declares, else to no lock at all. A lock that somebody else had set can
  only be inferred from the clock under load; it is reported as inferred, and lost.

A clock setting is a ceiling: the GPU may run slower, as it does by itself when idle, never faster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from joulewise.core.knob import DEFAULT, Setting


@dataclass(frozen=True, slots=True)
class Owner:
    """Who holds a lease, as the kernel says and not as they say."""

    lease: str
    """The lease's own name, unique on a node."""
    uid: int
    pid: int
    command: str = ""
    """The program, for people to read."""
    started: int = 0
    """The process's start time in clock ticks since boot: with the pid it names a process for good."""
    reason: str = ""
    """What the owner says it wants the lease for."""

    def __str__(self) -> str:
        return f"uid {self.uid} pid {self.pid}" + (f" ({self.command})" if self.command else "")


class Ending(StrEnum):
    """How one knob of one GPU came back."""

    RESTORED = "restored"
    """Exactly what was there is there again."""
    UNCHANGED = "unchanged"
    """It was there still, or nothing had been written."""
    FOREIGN = "foreign"
    """Somebody else had changed it meanwhile: left as they set it."""
    STANDING = "standing"
    """Clocks: back to the lock that joulewise had been told to keep."""
    BASELINE = "baseline"
    """Clocks: to the baseline that the site declares."""
    RESET = "reset"
    """Clocks: unlocked."""
    STALE = "stale"
    """The driver or the machine was started anew since, which undid it all: forgotten."""
    FAILED = "failed"
    """It could not be undone yet; it stays in the journal and is tried again."""


@dataclass(frozen=True, slots=True)
class Restored:
    """One knob of one GPU, given back."""

    gpu: str
    knob: str
    ending: Ending
    before: float | None
    """What was there before the lease; None where that cannot be known (clocks)."""
    wrote: float | None
    """What we had written last; None if nothing."""
    after: float | None
    """What is there now; None where that cannot be known, or there is no lock."""
    why: str = ""
    """In words, where the ending alone does not say it: who failed, what was found."""


@dataclass(frozen=True, slots=True)
class Applied:
    """What ``apply`` did."""

    requested: Setting
    effective: Mapping[str, Setting]
    """GPU → what is in force there now, as read back; a clock, which cannot be read, as it was written."""
    notes: tuple[str, ...] = ()
    """What a reader should know: "a limit of 300 W is in force below the 400 W asked for (BMC?)"."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that happened to a lease without its owner's doing."""

    kind: str
    """"ended", "foreign" (someone else wrote our knob), "reload" (the driver was started anew), "inferred"."""
    says: str
    gpu: str | None = None
    knob: str | None = None
    wrote: float | None = None
    found: float | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """How a lease ended, knob by knob."""

    why: str
    restored: tuple[Restored, ...] = field(default=())

    @property
    def clean(self) -> bool:
        """Whether everything is as it was before, as far as that can be known."""
        return all(each.ending not in (Ending.FOREIGN, Ending.FAILED) for each in self.restored)


@runtime_checkable
class Lease(Protocol):
    """The right to turn knobs. A context manager: leaving it releases. Methods may be called from any thread."""

    @property
    def name(self) -> str:
        """Unique on this node; what conflicts and the audit log call it."""
        ...

    @property
    def gpus(self) -> tuple[str, ...]:
        """UUIDs."""
        ...

    @property
    def knobs(self) -> frozenset[str]:
        """Names of the knobs it covers, on each of its GPUs."""
        ...

    @property
    def allowed(self) -> Mapping[str, tuple[float, float]]:
        """Knob → lowest and highest value that its owner may set; one that is not named goes as far as the hardware."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What the taker should know: persistence mode off, an inferred foreign lock, a stale cap."""
        ...

    @property
    def alive(self) -> bool:
        """Whether it still holds, as far as is known here without asking."""
        ...

    def apply(self, setting: Setting = DEFAULT, *, gpus: Sequence[str] | None = None) -> Applied:
        """Set exactly ``setting`` on the lease's GPUs (or some of them), on all or on none.

        Knobs of the lease that ``setting`` does not name go back to what was there before it. A clock that the hardware
        does not have becomes the next lower one. Raises Unsupported, OutOfRange, NotPermitted, GpuLost, GpuStalled,
        NotNow, NotSaved, LeaseLost; whatever it raises, no GPU is left with a part of it.
        """
        ...

    def beat(self) -> None:
        """Say that we live, which the lease does by itself in the background. LeaseLost if it has ended."""
        ...

    def quiet(self, duration_s: float, reason: str = "") -> None:
        """No write on these GPUs for so long (graph capture, checkpoint), by anybody; 0 ends it. Restores still act."""
        ...

    def notices(self) -> tuple[Notice, ...]:
        """What has happened since the last call."""
        ...

    def release(self) -> Ended:
        """End it and give everything back. Idempotent."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
