"""The life of leases: taken, applied, ended, and everything back. The part of the service that changes hardware.

All of it runs in one thread and never waits: what concerns a GPU goes to its station and comes back as a callback. Two
orders make it safe. Calls on one GPU run first come first served, so a restore that is queued behind an apply undoes it
whatever becomes of it. Acts of one lease never overlap, so "what was there before this apply" is always known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, TypeAlias

from joulewise.core.errors import (
    GpuStalled,
    JoulewiseError,
    LeaseLost,
    LeaseTaken,
    NoGpu,
    NotNow,
    NotPermitted,
    OutOfRange,
)
from joulewise.core.knob import Setting
from joulewise.daemon.book import Book, Client, Held, Party, Stage
from joulewise.daemon.gather import Gather
from joulewise.daemon.rights import Allowed
from joulewise.daemon.station import Station, Then
from joulewise.daemon.timers import Timers
from joulewise.device import wire
from joulewise.device.controls import LIMIT, as_set
from joulewise.device.keeper import Keeper
from joulewise.device.lease import Ending, Notice, Owner, Restored
from joulewise.device.wire_requests import Apply, Take, Together
from joulewise.device.wire_values import from_notice, from_restored

RETRY_FIRST_S: Final = 0.1
RETRY_MOST_S: Final = 5.0
"""A knob that could not be given back is tried again, ever more rarely: a GPU that was reset is back in seconds."""

Answer: TypeAlias = Callable[[Mapping[str, Any] | bytes | Exception], None]
"""Where the answer to one request goes, plain or encoded already; called once."""
Note: TypeAlias = Callable[..., None]
"""The audit log: ``note(held, op, gpu=…, knob=…, before=…, after=…, result=…)``."""


class Tenure:
    """Takes, applies and ends leases. ``time_s`` is the clock of their lives, ``wall`` of retries."""

    def __init__(
        self,
        book: Book,
        stations: Mapping[str, Station],
        lives: Timers,
        wall: Timers,
        now: Callable[[], float],
        note: Note,
    ) -> None:
        self._book = book
        self._stations = stations
        self._lives = lives
        self._wall = wall
        self._now = now
        self._note = note

    # -- take

    def take(
        self,
        client: Client,
        request: Take,
        allowed: dict[str, Allowed],
        party: Party | None,
        ttl_s: float,
        answer: Answer,
    ) -> None:
        """Enter the lease and save what is there; answered when every GPU's save is durable, or none holds.

        LeaseTaken, and GpuStalled at once where a GPU does not answer.
        """
        now_s = self._now()
        self._book.check_free(request.gpus, request.knobs, now_s)
        for gpu in request.gpus:
            self._stations[gpu].check_answers()
        self._check_joinable(party)
        owner = Owner(self._book.new_name(), client.uid, client.pid, client.command, client.started, request.reason)
        held = Held(owner, client, request.gpus, request.knobs, ttl_s, now_s + ttl_s, allowed, party)
        self._book.claim(held)
        if party is not None:
            party.members.append(held)

        def taken(results: dict[str, Any], errors: dict[str, Exception]) -> None:
            if errors:
                error = next(iter(errors.values()))
                for gpu, each in errors.items():
                    if not isinstance(each, GpuStalled):  # what has failed has saved nothing, so nothing is owed there
                        self._book.give_back(held, gpu)
                self.end(held, f"it could not be taken: {error}", then=lambda: answer(error), tell=False)
            elif held.stage is Stage.ENDING:
                held.waiting.append(lambda: answer(LeaseLost(f"{held.name} has ended: {held.why}")))
                self._tell_if_told(held)
            else:
                self._hold(held, results, answer)

        gather = Gather(request.gpus, taken)
        for gpu in request.gpus:
            self._stations[gpu].call(lambda keeper: keeper.take(held.knobs, owner), gather.slot(gpu))

    def _hold(self, held: Held, results: dict[str, Any], answer: Answer) -> None:
        """Everything is saved: the lease holds from now on."""
        held.stage = Stage.HELD
        self.renew(held)
        held.timer = self._lives.after(held.ttl_s, lambda: self._expire(held))
        self._note(held, "take", result="ok")
        notes = [f"{gpu}: {note}" for gpu, said in results.items() for note in said]
        answer({"lease": held.name, "ttl_s": held.ttl_s, "notes": notes})
        party = held.party
        if party is not None and sum(each.stage is Stage.HELD for each in party.members) == party.size:
            party.complete = True

    def renew(self, held: Held) -> None:
        """The owner has been heard of."""
        held.expires_s = self._now() + held.ttl_s

    def _expire(self, held: Held) -> None:
        left_s = held.expires_s - self._now()
        if left_s > 0:
            held.timer = self._lives.after(left_s, lambda: self._expire(held))
        else:
            self.end(held, f"its owner had not been heard of for {held.ttl_s:g} s")

    # -- parties

    def party(self, client: Client, together: Together | None) -> Party | None:
        """The party that a lease is to join, if any.

        LeaseLost if it is over, LeaseTaken if it is full, NotNow if its user has begun too many others.
        """
        if together is None:
            return None
        now_s = self._now()
        party = self._book.party(client.uid, together.name, together.size, now_s)
        if party.size != together.size:
            raise OutOfRange(f"the party {party.name!r} is of {party.size}, not of {together.size}; agree on a size")
        self._check_joinable(party)
        if not party.timed:
            party.timed = True
            self._lives.after(party.until_s - now_s, lambda: self._check_complete(party))
        return party

    def _check_joinable(self, party: Party | None) -> None:
        if party is None:
            return
        if party.failed is not None:
            raise LeaseLost(f"the party {party.name!r} has ended: {party.failed}; use another name to try again")
        if len(party.members) >= party.size:
            raise LeaseTaken(f"the party {party.name!r} has its {party.size} members already; use another name")

    def refuse_party(self, party: Party, why: str) -> None:
        """One that wanted to join was refused: none may keep what it has."""
        self._fail_party(party, f"one of its members was refused: {why}")

    def _check_complete(self, party: Party) -> None:
        """Its time is up. Runs once for each party, so it is also where its name is forgotten."""
        if party.failed is None and not party.complete:
            self._fail_party(party, f"only {len(party.members)} of {party.size} had joined in time")
        if party.failed is not None:
            self._book.forget_party(party)

    def _fail_party(self, party: Party, why: str) -> None:
        if party.failed is not None:
            return
        party.failed = why
        if self._now() >= party.until_s:
            self._book.forget_party(party)
        for member in list(party.members):
            self.end(member, f"its party {party.name!r} has ended: {why}")

    # -- apply

    def apply(
        self, client: Client, request: Apply, may: Callable[[Held, tuple[str, ...]], None], answer: Answer
    ) -> None:
        """Set it on all of the lease's GPUs or on none. ``may`` raises if it may not be done now."""
        held = self.owned(client, request.lease)
        gpus = request.gpus or held.gpus
        stray = set(gpus) - set(held.gpus)
        if stray:
            raise NoGpu(f"{min(stray)} is not part of {held.name}; it has {', '.join(held.gpus)}")
        held.in_turn(lambda: self._apply(held, gpus, request.setting, may, answer))

    def _apply(
        self,
        held: Held,
        gpus: tuple[str, ...],
        setting: Setting,
        may: Callable[[Held, tuple[str, ...]], None],
        answer: Answer,
    ) -> None:
        try:
            self._check_held(held)
            for gpu in gpus:
                self._check_range(held, gpu, setting)
                self._stations[gpu].check_answers()
            may(held, gpus)
        except Exception as error:
            held.next_turn()
            answer(error)
            return
        self.renew(held)
        before = {gpu: held.setting(gpu) for gpu in gpus}
        allowed = held.allowed
        astray: set[str] = set()
        """GPUs that the apply has left neither as asked nor as before."""

        def failed(error: Exception) -> None:
            held.next_turn()
            answer(error)

        def applied(results: dict[str, Any], errors: dict[str, Exception]) -> None:
            if errors:
                error = next(iter(errors.values()))
                self._take_back(held, before, (*results, *astray), lambda: failed(error))
                return
            notes: list[str] = []
            in_force: dict[str, dict[str, float]] = {}
            for gpu, (effective, said) in results.items():
                held.settings[gpu] = setting
                notes += [f"{gpu}: {note}" for note in said]
                in_force[gpu] = dict(effective.items())
                self._note_applied(held, gpu, before[gpu], setting, in_force[gpu])
            if held.stage is Stage.HELD:
                self.renew(held)
                answer({"effective": in_force, "notes": notes})
            else:
                answer(LeaseLost(f"{held.name} has ended meanwhile: {held.why}"))
            held.next_turn()
            if held.allowed is not allowed:
                self.check_still_allowed(held)

        def undo_late(gpu: str) -> Then:
            return lambda _, __: self._take_back(held, before, (gpu,), lambda: None)

        def apply_on(keeper: Keeper) -> tuple[Setting, tuple[str, ...]]:
            if (setting or before[keeper.gpu]) and LIMIT not in held.knobs:
                keeper.controls.read()  # a GPU that is lost says so before a clock is written, which nobody could see
            try:
                return keeper.apply(setting, held.knobs)
            except Exception as error:
                if not isinstance(error, JoulewiseError) or not held.knobs.isdisjoint(keeper.astray):
                    astray.add(keeper.gpu)
                raise

        gather = Gather(gpus, applied)
        for gpu in gpus:
            self._stations[gpu].call(apply_on, gather.slot(gpu), late=undo_late(gpu))

    def _note_applied(
        self, held: Held, gpu: str, before: Setting, setting: Setting, in_force: Mapping[str, float]
    ) -> None:
        """One line for each knob that was to change; one for all if none was."""
        changed = [knob for knob in sorted(held.knobs) if before.get(knob) != setting.get(knob)]
        for knob in changed:
            self._note(
                held, "apply", gpu=gpu, knob=knob, before=before.get(knob), after=in_force.get(knob), result="ok"
            )
        if not changed:
            self._note(held, "apply", gpu=gpu, result="ok")

    def _take_back(
        self, held: Held, before: Mapping[str, Setting], gpus: Iterable[str], then: Callable[[], None]
    ) -> None:
        """Put ``gpus`` back to what the lease had there before an apply that failed there or elsewhere."""
        back = tuple(gpus)
        if not back or held.stage is not Stage.HELD:  # an ending lease restores it all anyway
            then()
            return

        def done(_: dict[str, Any], errors: dict[str, Exception]) -> None:
            then()
            if errors:  # we cannot say any more what is there, so it must go back to what was before the lease
                gpu, error = next(iter(errors.items()))
                self.end(held, f"{gpu} could not be put back after an apply that failed: {error}")

        gather = Gather(back, done)
        for gpu in back:
            again = partial(_apply_again, before[gpu], held.knobs)
            self._stations[gpu].call(again, gather.slot(gpu), must=True)

    def owned(self, client: Client, name: str) -> Held:
        """The lease, if it is this client's own. LeaseLost if there is none, NotPermitted if it is another's."""
        held = self._book.get(name)
        if held is None:
            raise LeaseLost(f"there is no lease {name}: it was released, has expired or was ended; take a new one")
        if held.client is not client:
            raise NotPermitted(f"{name} is the lease of {held.owner} on another connection; take your own")
        return held

    def check_not_ended(self, held: Held) -> None:
        """LeaseLost if it has, though not everything may be back yet."""
        if held.stage is Stage.ENDING:
            raise LeaseLost(f"{held.name} has ended: {held.why}; take a new one")

    def check_still_allowed(self, held: Held) -> None:
        """End a lease that has set what its owner may set no longer."""
        try:
            for gpu, setting in held.settings.items():
                for knob, value in setting.items():
                    shown = as_set(knob, value, self._stations[gpu].space.knobs[knob])
                    held.allowed[gpu].check(knob, shown, gpu=gpu)
        except OutOfRange as error:
            if held.stage is Stage.HELD:
                self.end(held, f"its right has changed: {error}")

    def _check_held(self, held: Held) -> None:
        self.check_not_ended(held)
        if held.stage is Stage.TAKING:
            raise NotNow(f"{held.name} is still being taken; wait for the answer", retry_s=0.1)
        if held.party is not None and not held.party.complete:
            raise NotNow(
                f"of the party {held.party.name!r} {len(held.party.members)} of {held.party.size} have joined; "
                "none may act before all have",
                retry_s=0.1,
            )

    def _check_range(self, held: Held, gpu: str, setting: Setting) -> None:
        for knob in setting:
            if knob not in held.knobs:
                raise NotPermitted(
                    f"{held.name} does not cover {knob}, only {', '.join(sorted(held.knobs))}; take it too"
                )
        knobs, allowed = self._stations[gpu].space.knobs, held.allowed[gpu]
        for knob, value in setting.items():
            choices = knobs[knob]
            if not choices.low <= value <= choices.high:
                raise OutOfRange(f"{knob}={value:g} on {gpu} is outside {choices}; see 'joulewise doctor'")
            allowed.check(knob, value, gpu=gpu)
            allowed.check(knob, as_set(knob, value, choices), gpu=gpu)

    # -- end

    def end(self, held: Held, why: str, *, then: Callable[[], None] | None = None, tell: bool = True) -> None:
        """End a lease and give everything back, whatever stage it is in. ``then`` when all GPUs have answered.

        ``tell`` its owner with an event. The lease blocks others until the last knob is back.
        """
        if then is not None:
            held.waiting.append(then)
        if held.stage is Stage.ENDING:
            self._tell_if_told(held)
            return
        held.stage = Stage.ENDING
        held.why = why
        if held.timer is not None:  # else it would keep the lease in memory for the rest of its time
            self._lives.cancel(held.timer)
            held.timer = None

        def answered(*_: object) -> None:  # ``_returned`` has entered how it went
            held.told = True
            if tell:
                said = from_notice(held.name, Notice("ended", why))
                held.client.send(wire.line({**said, "restored": [from_restored(r) for r in held.all_reports()]}))
            self._tell_if_told(held)

        away = tuple(gpu for gpu in held.gpus if gpu in held.away)
        gather = Gather(away, answered)
        for gpu in away:
            self._restore(held, gpu, gather.slot(gpu), RETRY_FIRST_S)
        if not away:
            answered()
        if held.party is not None:
            self._fail_party(held.party, f"{held.owner} left it: {why}")

    def _tell_if_told(self, held: Held) -> None:
        if held.told:
            waiting, held.waiting = held.waiting, []
            for each in waiting:
                each()

    def _restore(self, held: Held, gpu: str, slot: Then, retry_s: float) -> None:
        """Give one GPU back; ``slot`` hears when that is done, or that it takes longer than anybody waits."""
        station = self._stations[gpu]

        def returned(result: Any, error: Exception | None) -> None:
            if isinstance(error, GpuStalled):  # it is still queued and will run; ``late`` hears of it
                held.restored[gpu] = _failed(held, gpu, error)
            else:
                self._returned(held, gpu, result, error, retry_s)
            slot(result, error)

        def late(result: Any, error: Exception | None) -> None:
            self._returned(held, gpu, result, error, retry_s)

        def restore(keeper: Keeper) -> tuple[Restored, ...]:
            return keeper.restore(held.knobs, held.name)

        def unless_stalled(result: Any, error: Exception | None) -> None:
            if not isinstance(error, GpuStalled):
                late(result, error)

        try:
            station.check_answers()
        except GpuStalled as error:  # whoever waits has waited for it long enough already
            station.call(restore, unless_stalled, late=late, must=True)
            returned(None, error)
        else:
            station.call(restore, returned, late=late, must=True)

    def _returned(self, held: Held, gpu: str, result: Any, error: Exception | None, retry_s: float) -> None:
        """A restore has come back: done with this GPU, or to be tried again."""
        reports: tuple[Restored, ...] = _failed(held, gpu, error) if error is not None else result
        before = held.restored.get(gpu)
        held.restored[gpu] = reports
        if reports != before:  # a retry that fails as the one before is no news
            for each in reports:
                self._note(
                    held, "restore", gpu=gpu, knob=each.knob, before=each.wrote, after=each.after,
                    result=each.ending.value + (f": {each.why}" if each.why else ""),
                )  # fmt: skip
        if any(each.ending is Ending.FAILED for each in reports):
            self._wall.after(retry_s, lambda: self._restore_again(held, gpu, min(2 * retry_s, RETRY_MOST_S)))
        else:
            self._book.give_back(held, gpu)

    def _restore_again(self, held: Held, gpu: str, retry_s: float) -> None:
        if gpu in held.away:  # else it has been given back meanwhile, and is perhaps another's by now
            self._restore(held, gpu, lambda _, __: None, retry_s)


def _apply_again(setting: Setting, knobs: frozenset[str], keeper: Keeper) -> None:
    keeper.apply(setting, knobs)


def _failed(held: Held, gpu: str, error: Exception) -> tuple[Restored, ...]:
    why = f"{type(error).__name__}: {error}"
    wrote = held.setting(gpu)
    return tuple(Restored(gpu, knob, Ending.FAILED, None, wrote.get(knob), None, why) for knob in sorted(held.knobs))
