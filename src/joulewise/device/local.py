"""LocalLease: a lease in the process that holds it, for root. Without a daemon, and with the same promise.

The process owns the files of its GPUs (``saved``) while it has leases on them, so one process at a time turns a GPU's
knobs; within it, there is one lease per (GPU, knob). Next to it runs a small process, the guardian, that gives
everything back if this one dies, however it does. A lease on virtual GPUs of this process needs neither
(``state=None``): they die with it.

It has no time to live: the process that holds it is its only life. What it is not: a way for others to get rights.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from joulewise.core.errors import BadSpec, GpuError, JoulewiseError, LeaseLost, LeaseTaken, NoGpu, NotNow
from joulewise.core.knob import DEFAULT, Setting
from joulewise.device.controls import Controls
from joulewise.device.guardian import Guardian
from joulewise.device.keeper import Keeper, Persistence
from joulewise.device.lease import Applied, Ended, Notice, Owner, Restored
from joulewise.device.rescue import rescue
from joulewise.device.saved import STATE, Memory, Saved, command_of

LOOK_S: Final = 1.0
"""How often ``notices`` looks at the hardware at most."""

_numbers = itertools.count(1)


class _Held:
    """One GPU in this process's hands: its keeper, who has which knob, and until when nobody may write."""

    def __init__(self, controls: Controls, saved: Memory, keeper: Keeper) -> None:
        self.controls = controls
        self.saved = saved
        self.keeper = keeper
        self.lock = threading.RLock()
        self.leases: dict[LocalLease, frozenset[str]] = {}
        self.quiet: tuple[float, str] = (-float("inf"), "")
        self.look_due_s = -float("inf")

    @property
    def owed(self) -> bool:
        """Whether something is to be given back for which no living lease of ours will."""
        return bool(self._orphans() or (self.saved.entries and not self.leases))

    def settle(self) -> None:
        """Try again what could not be given back, of leases that have ended or of processes before this one."""
        if self.owed:
            self.keeper.restore(self._orphans())

    def _orphans(self) -> list[str]:
        names = {lease.name for lease in self.leases}
        return [knob for knob in self.keeper.taken if self.saved.entries[knob].owner.lease not in names]

    def take(self, lease: LocalLease, knobs: frozenset[str], owner: Owner) -> tuple[str, ...]:
        """The keeper's notes; LeaseTaken names the lease in the way."""
        for other, theirs in self.leases.items():
            if theirs & knobs:
                raise LeaseTaken(
                    f"{', '.join(sorted(theirs & knobs))} of {self.controls.uuid} is held by {other.name} of this "
                    "process until it is released"
                )
        notes = self.keeper.take(knobs, owner)
        self.leases[lease] = knobs
        return notes

    def look(self) -> None:
        """Let each lease hear what has happened to its knobs."""
        now_s = self.controls.time.now_s()
        if now_s < self.look_due_s:
            return
        self.look_due_s = now_s + LOOK_S
        self.settle()
        with suppress(GpuError):  # a GPU that is lost says so when it is used
            for notice in self.keeper.look():
                for lease, knobs in self.leases.items():
                    if notice.knob is None or notice.knob in knobs:
                        lease._heard.append(notice)

    def check_quiet(self) -> None:
        """NotNow while somebody wants no writes."""
        left_s = self.quiet[0] - self.controls.time.now_s()
        if left_s > 0:
            why = f" ({self.quiet[1]})" if self.quiet[1] else ""
            raise NotNow(f"{self.controls.uuid} is to be left alone for {left_s:.1f} s more{why}; try then", left_s)


class _Hands:
    """All the GPUs that this process holds. A forked child holds none."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.held: dict[tuple[Path | None, object], _Held] = {}

    def forget(self) -> None:
        """After a fork: what the parent holds is not ours, nor is its lock, which a thread of its may have."""
        self.lock = threading.RLock()
        self.held = {}

    def pick_up(self, controls: Controls, state: Path | None, baseline: Setting, persistence: Persistence) -> _Held:
        """This process's hand on a GPU. What a dead process, or a lease of ours, owed there is given back first."""
        key = (state, id(controls) if state is None else controls.uuid)
        held = self.held.get(key)
        if held is not None:
            with held.lock:
                held.settle()
            return held
        if state is not None:
            rescue(state, controls.uuid, baseline=baseline, controls=controls)
        saved = Memory() if state is None else Saved.open(state, controls.uuid)
        try:
            if controls.locks is not None:
                saved.lock_gpu(controls.locks)
            keeper = Keeper(controls, saved, baseline=baseline, persistence=persistence)
        except BaseException:
            saved.close()
            raise
        held = self.held[key] = _Held(controls, saved, keeper)
        return held

    def put_down(self, held: _Held) -> None:
        """Let go of a GPU on which no lease is left; what is owed there is in its file, or else stays with us."""
        if not held.leases and (isinstance(held.saved, Saved) or not held.owed):
            self.held = {key: each for key, each in self.held.items() if each is not held}
            held.saved.close()


_hands = _Hands()
os.register_at_fork(after_in_child=lambda: _hands.forget())


class LocalLease:
    """The right to turn ``knobs`` of some GPUs, held by this process; made by ``take``. See ``lease.Lease``."""

    def __init__(self, owner: Owner, knobs: frozenset[str]) -> None:
        """Not to be called: ``take`` saves what is there first."""
        self._owner = owner
        self._knobs = knobs
        self._held: dict[str, _Held] = {}
        self._applied: dict[str, Setting] = {}
        self._notes: tuple[str, ...] = ()
        self._heard: list[Notice] = []
        self._guardian: Guardian | None = None
        self._lock = threading.RLock()
        self._ended: Ended | None = None
        self._astray = False
        """Whether some GPU shows neither what was last applied nor what was before: then the lease has to end."""
        self._pid = os.getpid()

    @classmethod
    def take(
        cls,
        controls: Sequence[Controls],
        knobs: Collection[str],
        *,
        state: Path | None = STATE,
        reason: str = "",
        baseline: Setting = DEFAULT,
        persistence: Persistence = "warn",
        guard: bool = True,
    ) -> LocalLease:
        """A lease on ``knobs`` of all these GPUs, or none: what is there is saved before anything can be written.

        ``state`` is the directory where it is saved; None keeps it in this process, for GPUs that live in it. Without
        ``guard`` nobody gives it back if this process is killed, until the next lease or 'joulewise restore'.
        Raises LeaseTaken, Unsupported, NotSaved, NotPermitted, GpuLost.
        """
        if not controls or not knobs:
            raise BadSpec("a lease needs at least one GPU and one knob")
        if len({each.uuid for each in controls}) < len(controls):
            raise BadSpec("a lease names a GPU twice; name each once")
        ordered = sorted(controls, key=lambda each: each.uuid)  # the same order for all, so that two never cross
        where = None if state is None else state.absolute()
        lease = cls(_me(f"local-{os.getpid()}-{next(_numbers)}", reason), frozenset(knobs))
        notes: list[str] = []
        with _hands.lock:
            try:
                for each in ordered:
                    held = _hands.pick_up(each, where, baseline, persistence)
                    lease._held[each.uuid] = held
                    with held.lock:
                        notes += held.take(lease, lease._knobs, lease._owner)
                if where is not None and guard:
                    lease._guardian = Guardian.start(where, [each.uuid for each in ordered])
            except BaseException:
                lease.release()
                raise
        lease._notes = tuple(notes)
        return lease

    @property
    def name(self) -> str:
        """Unique on this node."""
        return self._owner.lease

    @property
    def gpus(self) -> tuple[str, ...]:
        """UUIDs."""
        return tuple(self._held)

    @property
    def knobs(self) -> frozenset[str]:
        """What it covers on each GPU."""
        return self._knobs

    @property
    def allowed(self) -> Mapping[str, tuple[float, float]]:
        """Nothing is kept from root."""
        return {}

    @property
    def notes(self) -> tuple[str, ...]:
        """What the taker should know."""
        return self._notes

    @property
    def alive(self) -> bool:
        """Whether it holds; never in a forked child."""
        return self._ended is None and self._pid == os.getpid()

    def apply(self, setting: Setting = DEFAULT, *, gpus: Sequence[str] | None = None) -> Applied:
        """Set exactly ``setting`` on all of the lease's GPUs, or on ``gpus``, or on none.

        If it fails and what was there cannot be brought back either, the lease ends: then all of it is given back, as
        soon as that can be done.
        """
        try:
            with self._writing(gpus) as chosen:
                return self._apply(setting, chosen)
        except JoulewiseError as error:
            if self._astray:  # the locks are let go by now: ending takes others first
                self._end(f"it could not go back after an apply that failed: {error}")
                self._heard.append(Notice("ended", f"lease {self.name} has ended: {error}"))
                error.args = (f"{error}; so lease {self.name} has ended", *error.args[1:])
            raise

    def beat(self) -> None:
        """Say that we live; LeaseLost if it has ended."""
        if self._pid != os.getpid():
            raise LeaseLost(f"lease {self.name} is pid {self._pid}'s, not this child's; take one here")
        if self._ended is not None:
            raise LeaseLost(f"lease {self.name} has ended ({self._ended.why}); take a new one")

    def quiet(self, duration_s: float, reason: str = "") -> None:
        """No write on these GPUs for so long, by anybody in this process; 0 ends it."""
        if not 0 <= duration_s < float("inf"):
            raise BadSpec(f"quiet for {duration_s} s makes no sense; give seconds from 0 on")
        with self._lock:
            self.beat()
            for held in self._held.values():
                held.quiet = (held.controls.time.now_s() + duration_s, reason)

    def notices(self) -> tuple[Notice, ...]:
        """What has happened since the last call; looks at the hardware, once a second at most."""
        with self._lock:
            if self.alive:
                for held in self._held.values():
                    with held.lock:
                        held.look()
            heard, self._heard = self._heard, []
        return tuple(heard)

    def release(self) -> Ended:
        """Give everything back. What fails stays saved, and the guardian goes on trying. Idempotent."""
        return self._end("released")

    def _end(self, why: str) -> Ended:
        if self._pid != os.getpid():
            return Ended(f"it is pid {self._pid}'s, not this child's")
        with _hands.lock, self._lock:
            if self._ended is None:
                restored: list[Restored] = []
                owed = False
                for held in self._held.values():
                    with held.lock:
                        held.settle()
                        if held.leases.pop(self, None) is not None:
                            restored += held.keeper.restore(self._knobs, self.name)
                        owed = owed or held.owed
                    _hands.put_down(held)
                self._ended = Ended(why, tuple(restored))
                if self._guardian is not None:
                    self._guardian.dismiss(owed=owed)
            return self._ended

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    @contextmanager
    def _writing(self, gpus: Sequence[str] | None) -> Iterator[dict[str, _Held]]:
        """The GPUs to be written, locked, and nobody's wish against it."""
        with ExitStack() as locks:
            locks.enter_context(self._lock)
            self.beat()
            for uuid in gpus or ():
                if uuid not in self._held:
                    raise NoGpu(f"{uuid} is not in lease {self.name} ({', '.join(self._held)})")
            chosen = self._held if gpus is None else {uuid: self._held[uuid] for uuid in self._held if uuid in gpus}
            for held in chosen.values():
                locks.enter_context(held.lock)
                held.check_quiet()
            yield chosen

    def _apply(self, setting: Setting, chosen: Mapping[str, _Held]) -> Applied:
        effective: dict[str, Setting] = {}
        notes: list[str] = []
        try:
            for uuid, held in chosen.items():
                effective[uuid], said = held.keeper.apply(setting, self._knobs)
                notes += said
        except JoulewiseError as error:
            self._go_back(effective, error)
            self._astray = self._astray or any(held.keeper.astray & self._knobs for held in chosen.values())
            raise
        self._applied.update(dict.fromkeys(chosen, setting))
        return Applied(setting, effective, tuple(notes))

    def _go_back(self, done: Collection[str], error: JoulewiseError) -> None:
        """The GPUs that have it already get back what this lease had set there before."""
        for uuid in done:
            try:
                self._held[uuid].keeper.apply(self._applied.get(uuid, DEFAULT), self._knobs)
            except JoulewiseError as another:
                self._astray = True
                error.args = (f"{error}; {uuid} could not go back ({another}), and is owed", *error.args[1:])


def _me(name: str, reason: str) -> Owner:
    """This process as an owner."""
    pid = os.getpid()
    try:
        # Past the command's name, which may hold anything: field 22 is the start time (proc(5)).
        started = int(Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        started = 0
    return Owner(name, os.getuid(), pid, command_of(pid), started, reason)
