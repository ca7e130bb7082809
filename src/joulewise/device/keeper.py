"""One GPU's writer: saves before it writes, reads back, and gives everything back. The lease engine's core.

What was there is saved durably when knobs are taken; what is about to be written is announced before it is. So at any
line of this file the process may die, and ``replay`` in the next one finds out what is owed and gives it back:

- the **limit** is read. If it shows what we wrote, or were about to write, what was there before is written back,
  exactly; if it shows that already, nothing is to be done; if it shows anything else, somebody else has set it: theirs
  stays. Who sets by chance exactly what we had set cannot be told from us.
- **clocks** cannot be read. If we may have written one, it goes to the standing lock, else to the site's baseline
  (as we know it, else as whoever took the clock knew it), else to no lock.
- after a **reboot** or a **reload of the driver** (the energy counter shows less than before) nothing of ours is
  there any more, unless it was written since: the entry is stale and dropped.

It is synchronous, used by one thread at a time, and knows neither time to live nor rights: those are the daemon's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Final, Literal

from joulewise.core.errors import JoulewiseError, LeaseTaken, NotPermitted, NotSaved, OutOfRange, Unsupported
from joulewise.core.knob import DEFAULT, KNOBS, Setting
from joulewise.device.controls import CLOCKS, LIMIT, Controls, as_set
from joulewise.device.lease import Ending, Notice, Owner, Restored
from joulewise.device.saved import PERSISTENCE, Entry, Memory, boot_id
from joulewise.device.standing import REFUSED, Standing
from joulewise.device.undo import Undo
from joulewise.device.watch import Watch

Persistence = Literal["warn", "refuse", "set"]
"""What to do where persistence mode is off, so that settings vanish whenever nobody uses the GPU."""

_ORDER: Final = tuple(knob.name for knob in KNOBS)
_STALE_CAP: Final = 0.9
"""A limit below this share of the default is worth a word: operators raise such GPUs before a tenant starts."""
_ROUNDING_W: Final = 1.0
"""A driver that takes a limit but shows another within this has rounded it; farther off, somebody else was faster."""


class Keeper:
    """The one writer of one GPU, while it lives. ``saved`` is its memory, the file's or this process's."""

    def __init__(
        self,
        controls: Controls,
        saved: Memory,
        *,
        baseline: Setting = DEFAULT,
        persistence: Persistence = "warn",
    ) -> None:
        self.controls = controls
        self.saved = saved
        self.persistence = persistence
        self._locks: dict[str, float] = {}
        """Ceilings that we have written and not undone since, by knob."""
        self._watch = Watch(controls)
        self._standing = Standing(controls, saved, baseline)
        self._undo = Undo(controls, saved, self._standing)
        self._unsaid: list[Notice] = []
        self.astray: set[str] = set()
        """Knobs that an ``apply`` has left neither as asked nor as before, since going back failed too: whoever holds
        them has to end. A later ``apply`` or ``restore`` that succeeds takes them out."""
        self._inherited = {knob: entry.owner for knob, entry in saved.entries.items()}
        """Whose knobs a process before us still owes; not ours to hold, only to give back."""

    @property
    def gpu(self) -> str:
        """The GPU's UUID."""
        return self.controls.uuid

    @property
    def baseline(self) -> Setting:
        """What the site declares clocks to be when nobody leases them; may be changed at any time."""
        return self._standing.baseline

    @baseline.setter
    def baseline(self, baseline: Setting) -> None:
        self._standing.baseline = baseline

    @property
    def taken(self) -> frozenset[str]:
        """Knobs that are leased now, or still owed something."""
        return frozenset(self.saved.entries) - {PERSISTENCE}

    # A lease's life.

    def take(self, knobs: Collection[str], owner: Owner) -> tuple[str, ...]:
        """Save what is there, durably, so that ``apply`` may write ``knobs``: all of them or none.

        Returns what the taker should know. Raises Unsupported for a knob that this GPU has not, LeaseTaken if one is
        in other hands, NotSaved if it cannot be kept or what was there before other leases is lost, NotPermitted if the
        site refuses it without persistence mode.
        """
        for knob in knobs:
            if knob not in self.controls.space.knobs:
                raise Unsupported(f"{knob} cannot be set on {self._name}; see 'joulewise doctor'")
            if knob in self.saved.entries:
                raise LeaseTaken(f"{knob} of {self._name} is held by {self.saved.entries[knob].owner}")
        if not self.taken:
            self._unsaid.clear()  # it was for those who have gone, and is no news to a new lease
        self.controls.read()  # a GPU that is lost says so here, whatever is asked of it
        self._undo.after_corruption()
        notes: list[str] = []
        self._heed_reload()
        counter_j = self._watch.counter_j
        entries = [
            Entry.new(knob, self._before(knob), owner, counter_j, self._standing.declared(knob))
            for knob in _ordered(knobs)
        ]
        if self.controls.persistence() is False and PERSISTENCE not in self.saved.entries:
            entries += self._without_persistence(owner, counter_j, notes)
        self.saved.save(*entries)
        if any(entry.knob == PERSISTENCE for entry in entries):
            try:
                self.saved.intend(PERSISTENCE, 1.0, 0.0)
                self.controls.set_persistence(True)
            except JoulewiseError:
                self.saved.forget(*(entry.knob for entry in entries))
                raise
        self._watch.forget()
        return (*notes, *self._found(entries))

    def apply(self, setting: Setting, knobs: Collection[str]) -> tuple[Setting, tuple[str, ...]]:
        """Set exactly ``setting`` over the taken ``knobs``; those that it does not name go back to before.

        Returns what is in force and what a reader should know of it. If anything fails, the knobs are again as this
        lease had set them before the call; if that fails too, the error says so and the knobs are ``astray``.
        Somebody else's limit that is found on the way is not lost: it becomes what comes back in the end. Raises
        NotPermitted for a knob that is not among ``knobs``, OutOfRange, Unsupported, NotSaved, GpuLost.
        """
        wanted = self._checked(setting, knobs)
        if LIMIT in knobs and self._is_foreign(self.saved.entries.get(LIMIT)):
            self._heed_reload()  # which is the one reason for it that changes clocks too
        notes: list[str] = []
        undo: list[tuple[str, float | None]] = []
        try:
            for knob in _ordered(knobs):
                undo.append((knob, self._in_force(knob)))
                try:
                    self._turn(knob, wanted.get(knob), notes)
                except (NotSaved, *REFUSED):
                    undo.pop()  # of this knob nothing was changed
                    raise
            effective = self._effective(knobs, notes)
        except JoulewiseError as error:
            self._roll_back(undo, error)
            raise
        self.astray.difference_update(knobs)
        return effective, tuple(notes)

    def restore(self, knobs: Collection[str], lease: str | None = None) -> tuple[Restored, ...]:
        """Give ``knobs`` back, each as well as it can be; those that nobody has taken are passed over.

        With the name of a ``lease``, those that another one has taken are passed over, too: who tries again late may
        find them in other hands. Never raises: what fails is FAILED, stays saved and may be tried again. With the
        last knob, persistence mode goes back too.
        """
        reloaded = self._watch.reloaded()
        owners = {knob: self.saved.entries[knob].owner.lease for knob in _ordered(knobs) if knob in self.taken}
        given = [self._give_back(knob, reloaded) for knob, owner in owners.items() if lease in (None, owner)]
        if not self.taken and PERSISTENCE in self.saved.entries:
            given.append(self._give_back(PERSISTENCE, reloaded))
        if reloaded and self.taken:  # by others, who have to hear of it
            with suppress(JoulewiseError):
                self._start_anew()
        return tuple(given)

    def replay(self) -> tuple[Restored, ...]:
        """Give back all that a process before us still owed, then set again what stands. Never raises."""
        booted = [entry for entry in self.saved.entries.values() if entry.boot != boot_id()]
        given = [self._undo.drop(entry, "the machine was booted since") for entry in booted]
        # A replay that is tried again must not take what somebody has leased from us meanwhile.
        given += self.restore(
            [knob for knob in self.taken if self.saved.entries[knob].owner == self._inherited.get(knob)]
        )
        given += self._undo.after_corruption()
        self._standing.stand_again()
        return tuple(given)

    def stand(self, knob: str, value: float | None) -> None:
        """Keep a clock locked at ``value`` between leases, over restarts of ours and of the driver; None: no more.

        A clock that is leased now gets there when its lease ends; one that is not, at once: for None, to the baseline
        or to no lock. Durable on return; whatever is raised, what stood before stands. Unsupported for a limit, which
        whoever is in charge sets for good without us; else as ``apply``.
        """
        if knob not in CLOCKS:
            raise Unsupported(f"{knob} cannot stand, only {' and '.join(CLOCKS)} can; set it without joulewise")
        if value is not None:
            value = self._checked(Setting(**{knob: value}), [knob])[knob]
        elif knob not in self.controls.space.knobs:
            raise Unsupported(f"{knob} cannot be set on {self._name}; see 'joulewise doctor'")
        self.controls.read()  # a GPU that is lost says so before anything is changed
        self._standing.stand(knob, value)

    # What happens meanwhile.

    def look(self) -> tuple[Notice, ...]:
        """What has happened to taken knobs without our doing, each thing told once. To be called about once a second.

        A driver that was started anew has undone all: what is there now becomes what comes back in the end. Raises
        GpuLost, and NotSaved if that cannot be kept.
        """
        seen: list[Notice] = []
        if LIMIT in self.taken:
            seen += self._watch.foreign_limit(self.saved.entries[LIMIT])
        if "sm_mhz" in self._locks:
            seen += self._watch.lifted(self._locks["sm_mhz"])
        if self.taken and (seen or self._watch.counter_is_due()) and self._heed_reload():
            seen = []  # it was the driver, and nobody else
        notices, self._unsaid = [*self._unsaid, *seen], []
        return tuple(notices)

    def infer(self) -> Notice | None:
        """A lock of the SM clock that is not ours, as far as a clock under load gives it away; None if nothing does."""
        if self._standing.base("sm_mhz") is not None or "sm_mhz" in self._locks:
            return None
        return self._watch.locked_by_others()

    # Taking.

    def _before(self, knob: str) -> float | None:
        if knob != LIMIT:
            return None
        limit_w = self.controls.value(LIMIT)
        if limit_w is None:
            raise Unsupported(f"the power limit of {self._name} cannot be read, so it could not be brought back")
        return limit_w

    def _without_persistence(self, owner: Owner, counter_j: float | None, notes: list[str]) -> list[Entry]:
        if self.persistence == "refuse":
            raise NotPermitted(
                f"persistence mode is off on {self._name}, so settings would vanish whenever nobody uses it, and the "
                "site refuses that; 'nvidia-smi -pm 1'"
            )
        if self.persistence == "set":
            notes.append(f"persistence mode of {self._name} was off; it is on while somebody holds a lease")
            return [Entry.new(PERSISTENCE, 0.0, owner, counter_j)]
        notes.append(
            f"persistence mode is off on {self._name}: what is set vanishes whenever nobody uses it; 'nvidia-smi -pm 1'"
        )
        return []

    def _found(self, entries: Iterable[Entry]) -> list[str]:
        """What is odd about what was found; asking costs microseconds and may not stop the taking."""
        notes: list[str] = []
        for entry in entries:
            if entry.knob == LIMIT and entry.before is not None:
                default_w = self.controls.default_limit_w
                if default_w is not None and entry.before < _STALE_CAP * default_w:
                    notes.append(
                        f"the limit of {self._name} is {entry.before:g} W, below its default of {default_w:g} W: "
                        "somebody's cap, perhaps left behind; it will come back"
                    )
                notes += self._held_below(entry.before)
            elif entry.knob == "sm_mhz":
                inferred = self.infer()
                notes += [inferred.says] if inferred else []
        return notes

    # Turning.

    def _checked(self, setting: Setting, knobs: Collection[str]) -> dict[str, float]:
        """The values as the hardware has them; raises before anything is touched."""
        wanted: dict[str, float] = {}
        for knob, value in setting.items():
            choices = self.controls.space.knobs.get(knob)
            if choices is None:
                raise Unsupported(f"{knob} cannot be set on {self._name}; see 'joulewise doctor'")
            if knob not in knobs:
                raise NotPermitted(f"{knob} of {self._name} is not in this lease ({', '.join(knobs)}); take it too")
            if not choices.low <= value <= choices.high:  # a NaN is never between
                raise OutOfRange(f"{knob}={value:g} on {self._name} is outside {choices}; see 'joulewise doctor'")
            wanted[knob] = self.controls.exact(knob, as_set(knob, value, choices))
        return wanted

    def _is_foreign(self, entry: Entry | None) -> bool:
        return entry is not None and self.controls.value(LIMIT) not in (entry.before, *entry.wrote)

    def _turn(self, knob: str, value: float | None, notes: list[str], *, back: bool = False) -> None:
        """Bring one taken knob to ``value``, or to what was there before.

        The way ``back`` to a value that is known to be ours is open even if the disk has just filled.
        """
        entry = self.saved.entries.get(knob)
        if entry is None:
            raise NotSaved(f"nobody has taken {knob} of {self._name}; take a lease on it first")
        if knob == LIMIT:
            self._turn_limit(entry, value, notes, back=back)
        elif value is not None:
            self._intend(entry, value, self._locks.get(knob), back=back)
            self._write_intended(entry, value)
            self._locks[knob] = value
        elif knob in self._locks:
            self._standing.to_base(knob)
            del self._locks[knob]

    def _turn_limit(self, entry: Entry, value: float | None, notes: list[str], *, back: bool) -> None:
        found = self.controls.value(LIMIT)
        if found is None:
            raise Unsupported(f"the power limit of {self._name} cannot be read any more, so it is left alone")
        if found != entry.before and found not in entry.wrote:
            entry = replace(entry, before=found, wrote=())
            self.saved.save(entry)
            notes.append(f"somebody else had set {found:g} W on {self._name}; that is what will come back in the end")
        target = entry.before if value is None else value
        assert target is not None
        if target == found:
            return
        self._intend(entry, target, found, back=back)
        self._write_intended(entry, target)
        shown = self.controls.value(LIMIT)
        if shown is not None and shown != target:
            if abs(shown - target) <= _ROUNDING_W:
                self.saved.intend(LIMIT, shown)
            notes.append(f"{self._name} shows a limit of {shown:g} W, not the {target:g} W that were written")

    def _intend(self, entry: Entry, value: float, over: float | None, *, back: bool) -> None:
        try:
            self.saved.intend(entry.knob, value, over)
        except NotSaved:
            if not (back and value in (entry.before, *entry.wrote)):
                raise

    def _write_intended(self, entry: Entry, value: float) -> None:
        """Write what was announced; if the driver refuses it, it was never to be. ``entry``: before announcing."""
        try:
            self.controls.write(entry.knob, value)
        except REFUSED:
            with suppress(NotSaved):  # then a restart looks at a knob for nothing
                self.saved.save(entry)
            raise
        except JoulewiseError:
            if entry.knob in CLOCKS:
                self._locks[entry.knob] = value  # it may be there: a way back leads over it
            raise
        self._watch.wrote(entry.knob)

    def _in_force(self, knob: str) -> float | None:
        """What a failing ``apply`` goes back to."""
        return self.controls.value(LIMIT) if knob == LIMIT else self._locks.get(knob)

    def _roll_back(self, undo: list[tuple[str, float | None]], error: JoulewiseError) -> None:
        """Undo, last first; what cannot be undone stays saved and is ``astray``, and the error says so."""
        for knob, value in reversed(undo):
            try:
                if knob != LIMIT or self.controls.value(LIMIT) != value:
                    self._turn(knob, value, [], back=True)
            except JoulewiseError as another:
                self.astray.add(knob)
                why = "" if str(another) in str(error) else f" ({another})"
                error.args = (f"{error}; going back failed too for {knob}{why}, and is owed", *error.args[1:])

    def _effective(self, knobs: Collection[str], notes: list[str]) -> Setting:
        values: dict[str, float] = {}
        for knob in knobs:
            value = self.controls.value(LIMIT) if knob == LIMIT else self._locks.get(knob, self._standing.base(knob))
            if value is not None:
                values[knob] = value
        if LIMIT in values:
            enforced_w = self.controls.enforced_limit_w()
            if enforced_w is not None and enforced_w < values[LIMIT]:
                notes += self._held_below(values[LIMIT])
                values[LIMIT] = enforced_w
        return Setting(**values)

    def _held_below(self, asked_w: float) -> list[str]:
        enforced_w = self.controls.enforced_limit_w()
        if enforced_w is None or enforced_w >= asked_w:
            return []
        return [f"a limit of {enforced_w:g} W is in force on {self._name} below the {asked_w:g} W asked for (a BMC's?)"]

    # Giving back.

    def _give_back(self, knob: str, reloaded: bool) -> Restored:
        entry = self.saved.entries[knob]
        given = self._undo.give_back(entry, older_than_driver=reloaded or self._watch.outdates(entry))
        if given.ending is not Ending.FAILED:
            self._locks.pop(knob, None)
            self.astray.discard(knob)
        return given

    # A driver that was started anew.

    def _heed_reload(self) -> bool:
        """Whether the driver was started anew; then what follows from it has been done."""
        if not self._watch.reloaded() or not self.taken:
            return False
        self._start_anew()
        return True

    def _start_anew(self) -> None:
        """Nothing of ours is there any more, so what is there now is what comes back; and whoever looks is told."""
        says = f"the driver of {self._name} was started anew, which undid what was set; apply it again"
        self._unsaid.append(Notice("reload", says, self.gpu))
        for knob in CLOCKS:
            entry, base = self.saved.entries.get(knob), self._standing.base(knob)
            # Unless we have written it since, which nobody can see: so it is undone for sure.
            if base is not None or (entry is not None and entry.wrote):
                self._standing.to_base(knob)
        self._locks.clear()
        self._watch.forget()
        counter_j = self._watch.counter_j
        fresh: list[Entry] = []
        for knob in self.taken:
            entry = self.saved.entries[knob]
            if self._undo.written_since(entry):
                fresh.append(replace(entry, counter_j=counter_j))
            else:
                fresh.append(Entry.new(knob, self._before(knob), entry.owner, counter_j, entry.base))
        self.saved.save(*fresh)

    @property
    def _name(self) -> str:
        return f"{self.gpu} ({self.controls.name})"


def _ordered(knobs: Collection[str]) -> list[str]:
    """In the order in which they are written: clocks first, the limit last."""
    return [knob for knob in _ORDER if knob in knobs]
