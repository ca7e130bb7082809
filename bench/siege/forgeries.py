"""Forged savings: does any get a stronger label from ``joulewise verify`` than it deserves?

Honest tuned runs on virtual GPUs (``bench/siege/tuned_runs``) are rewritten in some sixty ways, each as a forger would
who knows the project: blocks, decisions and times are changed together, the claim is computed again from the blocks,
and the journal is sealed again. Some forgers remove or rewrite what is kept beside the journal, and some bring
signatures. A forgery of the journal alone deserves to be refused; one whose evidence was removed, at most ``recomputed
from blocks``; one whose evidence was rewritten as well, at most ``checked against readings``; none deserves
``countersigned``, with a verifier who brings the watcher's key.

Then every honest run that has the label ``checked against readings`` is forged in three ways (less joules of what was
set, more at default, both) by as much as is just not refused. Such a forgery keeps its label, so ``verify`` must print
beside it the saving by the readings alone and its tolerance, and these must hold both the forged saving and the honest
one; else it counts as overstated.

What the figures mean: ``forgeries`` made; ``forged_overstated`` of them with a stronger label than deserved;
``forged_refused`` with exit code 1; ``honest`` runs, ``honest_refused`` of them refused, ``honest_against_readings``
with that label; ``unseen_change`` the largest change of a saving (0.01: one per cent of the joules without it) that was
just not noticed, beside the tolerance that ``verify`` stated there (``unseen_stated``); ``unseen_share`` the largest
such change as a share of its tolerance.
"""

from __future__ import annotations

import itertools
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.siege.tuned_runs import UNIX_S, kinds, make
from joulewise.cli.standing import AGAINST_READINGS, COUNTERSIGNED, FROM_BLOCKS, label_lines
from joulewise.cli.verify import examined
from joulewise.core.block import Block, Role
from joulewise.core.event import Began, Decided, Event, Finished, Proven, Seen, Shifted, to_json
from joulewise.core.knob import DEFAULT, Setting
from joulewise.store import Database, Sample, SqliteStore
from joulewise.store.countersignature import Countersignature, SigningKey, Statement, keep
from joulewise.store.evidence import evidence
from joulewise.store.pace import PaceRecord, Step, pace_stream
from joulewise.store.pace import read as read_pace
from joulewise.store.views import countersigned_stream, measured_stream, one
from joulewise.tune.proof import prove
from joulewise.tune.seal import Seal

RUN = "20231114-221320-f0f0"
REFUSED, BLOCKS, READINGS = 0, 1, 2
"""What a forgery deserves at most."""
_SIGNED = 3
Change = Callable[["Case"], None]


@dataclass
class Case:
    """A copy of an honest run's store, to be forged."""

    store: SqliteStore
    events: list[Event]
    other: SqliteStore
    """The store of another honest run, under the same name."""
    forger: SigningKey
    watcher: SigningKey

    # The journal.

    def blocks(self, change: Callable[[Seen], Block], of: Callable[[Seen], bool]) -> None:
        """Rewrite the blocks that ``of`` chooses."""
        self.events = [
            replace(each, block=change(each)) if isinstance(each, Seen) and of(each) else each for each in self.events
        ]

    def seal(self) -> None:
        """Write the journal again with the claim that its blocks make, sealed again."""
        made: list[Event] = []
        sealed = Seal()
        for event in self.events:
            if isinstance(event, Proven):
                seen = [each for each in made if isinstance(each, Seen)]
                shifts = [each for each in made if isinstance(each, Shifted)]
                event = prove(seen, shifts).event(event.time_s) or event
            if isinstance(event, Finished):
                event = replace(event, facts={**event.facts, "seal": sealed.facts})
            made.append(event)
            sealed.add(event)
        self.events = made
        self.write()

    def write(self) -> None:
        """Write the journal as it is, whatever its seal says."""
        _delete(self.store, "events", RUN)
        journal = self.store.journal(RUN)
        for event in self.events:
            journal.append(event)

    # What is kept beside it.

    def samples(self, change: Callable[[str, list[Sample]], list[Sample]]) -> None:
        """Rewrite the readings of each GPU."""
        readings = self.store.readings()
        before = {uuid: list(readings.samples(RUN, uuid)) for uuid in readings.gpus(RUN)}
        _delete(self.store, "readings", RUN)
        fresh = self.store.readings()
        for uuid, some in before.items():
            fresh.write(RUN, uuid, change(uuid, some))

    def power(self, factor: Callable[[float], float]) -> None:
        """Multiply the power that was kept at each moment of the journal's clock."""
        unix_s = next(each.facts["unix_s"] for each in self.events if isinstance(each, Began))
        self.samples(
            lambda _, some: [replace(each, power_w=(each.power_w or 0.0) * factor(each.at_s - unix_s)) for each in some]
        )

    def pace(self, change: Callable[[list[Step]], list[Step]]) -> None:
        """Rewrite when steps ended."""
        kept = read_pace(event for _, event in self.store.journal(pace_stream(RUN)).read())
        rows: list[Step] = []
        for phase, pace in kept.items():
            done = 0.0
            for start_s, end_s, work in zip(pace.start_s, pace.end_s, pace.work, strict=True):
                done += work
                rows.append((start_s, end_s, phase, done))
        _delete(self.store, "events", pace_stream(RUN))
        event = PaceRecord().event(change(rows), RUN, last=True)
        if event is not None:
            self.store.journal(pace_stream(RUN)).append(event)

    def total(self, factor: float | None) -> None:
        """Multiply the measured total, or remove it."""
        run = one(self.store.tables, RUN)
        assert run is not None
        assert run.measured is not None
        _delete(self.store, "events", measured_stream(RUN))
        if factor is not None:
            used = dict(run.measured)
            for part in (used, *used["gpus"]):
                part["energy_j"] *= factor
            self.store.journal(measured_stream(RUN)).append(Finished(0.0, "ended", {"measured": used}))

    def sign(self, key: SigningKey, **instead: Any) -> Countersignature:
        """Have ``key`` sign what the store holds now, and keep it."""
        events = [event for _, event in self.store.journal(RUN).read()]
        sealed = next(each.facts["seal"] for each in reversed(events) if isinstance(each, Finished))
        readings = evidence(self.store, RUN, events).digest
        said = Statement(RUN, sealed["events"], sealed["sha256"], readings, "192.0.2.1", "watcher", UNIX_S + 500.0)
        signed = key.sign(replace(said, **instead))
        keep(self.store, signed)
        return signed


def _delete(store: SqliteStore, table: str, stream: str) -> None:
    store.tables.change(f"DELETE FROM {table} WHERE stream = :stream", {"stream": stream})


# Which blocks.


def _held(each: Seen) -> bool:
    return each.role is Role.HOLD and each.block.setting != DEFAULT


def _set(each: Seen) -> bool:
    return each.block.setting != DEFAULT


def _default(each: Seen) -> bool:
    return each.block.setting == DEFAULT


def _role(*roles: Role) -> Callable[[Seen], bool]:
    return lambda each: each.role in roles


# The journal alone.


def _joules(factor: float, of: Callable[[Seen], bool]) -> Change:
    def change(case: Case) -> None:
        case.blocks(lambda each: replace(each.block, energy_j=each.block.energy_j * factor), of)
        case.seal()

    return change


def _work(factor: float, of: Callable[[Seen], bool], *, whole: bool = True) -> Change:
    def forged(each: Seen) -> Block:
        work = each.block.work * factor
        return replace(each.block, work=max(1.0, float(round(work))) if whole else work)

    def change(case: Case) -> None:
        case.blocks(forged, of)
        case.seal()

    return change


def _one_step_more(case: Case) -> None:
    case.blocks(lambda each: replace(each.block, work=each.block.work + 1.0), _held)
    case.seal()


def _seconds(factor: float, of: Callable[[Seen], bool], *, joules: bool = False, left_out: bool = True) -> Change:
    def forged(each: Seen) -> Block:
        block = each.block
        duration_s = block.duration_s * factor
        out_s = max(0.0, block.end_s - block.start_s - duration_s) if left_out else block.left_out_s
        energy_j = block.energy_j * factor if joules else block.energy_j
        return replace(block, duration_s=duration_s, left_out_s=out_s, energy_j=energy_j)

    def change(case: Case) -> None:
        case.blocks(forged, of)
        case.seal()

    return change


def _one_of(nth: int, factor: float) -> Change:
    def change(case: Case) -> None:
        chosen = [each for each in case.events if isinstance(each, Seen) and _held(each)][nth]
        _joules(factor, lambda each: each is chosen)(case)

    return change


def _by_time(case: Case) -> None:
    """Less and less: nobody looks at the end."""
    last_s = max(each.block.end_s for each in case.events if isinstance(each, Seen))
    case.blocks(
        lambda each: replace(each.block, energy_j=each.block.energy_j * (1.0 - 0.5 * each.block.end_s / last_s)), _held
    )
    case.seal()


def _swapped_joules(case: Case) -> None:
    """Every pair the other way round: the candidate's joules are the reference's."""
    held = [e for e in case.events if isinstance(e, Seen) and e.role is Role.CANDIDATE]
    base = [e for e in case.events if isinstance(e, Seen) and e.role is Role.REFERENCE]
    power_w = sum(e.block.energy_j for e in held) / sum(e.block.duration_s for e in held)
    other_w = sum(e.block.energy_j for e in base) / sum(e.block.duration_s for e in base)
    case.blocks(lambda e: replace(e.block, energy_j=0.9 * power_w * e.block.duration_s), _role(Role.CANDIDATE))
    case.blocks(lambda e: replace(e.block, energy_j=1.1 * other_w * e.block.duration_s), _role(Role.REFERENCE))
    case.seal()


def _roles(before: Role, after: Role, of: Callable[[Seen], bool] = lambda _: True, every: int = 1) -> Change:
    def change(case: Case) -> None:
        count = 0
        for place, each in enumerate(case.events):
            if isinstance(each, Seen) and each.role is before and of(each):
                count += 1
                if count % every == 0:
                    case.events[place] = replace(each, role=after)
        case.seal()

    return change


def _pairs_turned(case: Case) -> None:
    """Both halves of every pair change places: who came first looks drawn otherwise."""
    places = [
        place
        for place, each in enumerate(case.events)
        if isinstance(each, Seen) and each.role in (Role.CANDIDATE, Role.REFERENCE)
    ]
    for place in places:
        each = case.events[place]
        assert isinstance(each, Seen)
        other = Role.REFERENCE if each.role is Role.CANDIDATE else Role.CANDIDATE
        case.events[place] = replace(each, role=other)
    case.seal()


def _pair_order(case: Case) -> None:
    """The settings of the halves change places with the roles, decisions and all."""
    wanted = {Role.CANDIDATE: Role.REFERENCE, Role.REFERENCE: Role.CANDIDATE}
    chosen = next(each.block.setting for each in case.events if isinstance(each, Seen) and each.role is Role.CANDIDATE)
    made: list[Event] = []
    for each in case.events:
        if isinstance(each, Seen) and each.role in wanted:
            role = wanted[each.role]
            setting = chosen if role is Role.CANDIDATE else DEFAULT
            for place in range(len(made) - 1, -1, -1):
                decided = made[place]
                if isinstance(decided, Decided) and decided.decision.setting == each.block.setting:
                    made[place] = replace(decided, decision=replace(decided.decision, setting=setting))
                    break
            each = replace(each, role=role, block=replace(each.block, setting=setting))
        made.append(each)
    case.events = made
    case.seal()


def _facts(**instead: Any) -> Change:
    def change(case: Case) -> None:
        case.events = [
            replace(each, facts={**each.facts, **instead}) if isinstance(each, Began) else each for each in case.events
        ]
        case.seal()

    return change


def _without(of: Callable[[Seen], bool], nth: int | None = None, *, how: str = "both") -> Change:
    """Take blocks out: with their decision, without it, said to have come to nothing, or with the hole closed."""

    def change(case: Case) -> None:
        chosen = [each for each in case.events if isinstance(each, Seen) and of(each)]
        gone = chosen if nth is None else [chosen[nth]]
        made: list[Event] = []
        moved_s = 0.0
        for each in case.events:
            if isinstance(each, Seen) and each in gone:
                decided = next((p for p in range(len(made) - 1, -1, -1) if isinstance(made[p], Decided)), None)
                if how == "void":
                    says = f"{each.role} block came to nothing after {each.block.end_s - each.block.start_s:.3f} s"
                    made.append(Shifted(each.time_s - moved_s, "void", says, each.block.phase))
                    continue
                if decided is not None and how != "block":
                    if how == "closed":
                        moved_s += each.time_s - moved_s - made[decided].time_s
                    del made[decided]
                continue
            made.append(_moved(each, -moved_s))
        case.events = made
        case.seal()

    return change


def _moved(event: Event, by_s: float) -> Event:
    """An event, with its block, at another time."""
    if not by_s:
        return event
    if isinstance(event, Seen):
        block = replace(event.block, start_s=event.block.start_s + by_s, end_s=event.block.end_s + by_s)
        return replace(event, time_s=event.time_s + by_s, block=block)
    return replace(event, time_s=event.time_s + by_s)


def _all_moved(by_s: float) -> Change:
    def change(case: Case) -> None:
        case.events = [_moved(each, by_s) for each in case.events]
        _joules(0.8, _held)(case)

    return change


def _doubled(of: Callable[[Seen], bool], times: int, *, later: bool = True) -> Change:
    """The best block once more, all that follows moved to make room."""

    def change(case: Case) -> None:
        chosen = [each for each in case.events if isinstance(each, Seen) and of(each)]
        best = min(chosen, key=lambda each: each.block.unit_j)
        made: list[Event] = []
        by_s, decided = 0.0, None
        for each in case.events:
            if isinstance(each, Decided):
                decided = each
            made.append(_moved(each, by_s))
            if each is best and decided is not None:
                length_s = each.time_s - decided.time_s
                for _ in range(times):
                    by_s += length_s if later else 0.0
                    made += [_moved(decided, by_s), _moved(each, by_s)]
        case.events = made
        case.seal()

    return change


def _cut(share: float) -> Change:
    """The end is left out: the setting did badly there."""

    def change(case: Case) -> None:
        seen = [place for place, each in enumerate(case.events) if isinstance(each, Seen)]
        last = seen[int(share * len(seen))]
        at_s = case.events[last].time_s + 0.01
        proven = [replace(each, time_s=at_s) for each in case.events if isinstance(each, Proven)]
        ends: list[Event] = [*proven[-1:]]
        ends += [replace(each, time_s=at_s) for each in case.events if isinstance(each, Finished)]
        case.events = [*case.events[: last + 1], *ends]
        case.seal()

    return change


def _claimed(**factors: float) -> Change:
    """Another claim, sealed, above honest blocks."""

    def change(case: Case) -> None:
        case.seal()
        sealed, made = Seal(), []
        for event in case.events:
            if isinstance(event, Proven):
                event = replace(event, **{name: getattr(event, name) * factor for name, factor in factors.items()})
            if isinstance(event, Finished):
                event = replace(event, facts={**event.facts, "seal": sealed.facts})
            made.append(event)
            sealed.add(event)
        case.events = made
        case.write()

    return change


def _unsealed(case: Case) -> None:
    """The joules of one block, and nothing else."""
    case.blocks(lambda each: replace(each.block, energy_j=0.5 * each.block.energy_j), _held)
    case.write()


def _chosen(case: Case) -> None:
    """It ended at a setting that was never run."""
    other = {"": {"sm_mhz": 345.0}}
    case.events = [
        replace(each, facts={**each.facts, "chosen": other}) if isinstance(each, Finished) else each
        for each in case.events
    ]
    case.seal()


def _other_setting(mhz: float) -> Change:
    """The same joules, said to be those of another clock."""

    def change(case: Case) -> None:
        setting = Setting(sm_mhz=mhz)
        made: list[Event] = []
        for each in case.events:
            if isinstance(each, Seen) and _set(each):
                each = replace(each, block=replace(each.block, setting=setting))
            elif isinstance(each, Decided) and each.decision.setting != DEFAULT:
                each = replace(each, decision=replace(each.decision, setting=setting))
            elif isinstance(each, Finished):
                each = replace(each, facts={**each.facts, "chosen": {"": dict(setting)}})
            made.append(each)
        case.events = made
        case.seal()

    return change


# What is kept beside it, too.


def _after(first: Change, *then: Change) -> Change:
    def change(case: Case) -> None:
        first(case)
        for each in then:
            each(case)

    return change


def _no_readings(case: Case) -> None:
    _delete(case.store, "readings", RUN)


def _few_readings(case: Case) -> None:
    """The readings of what was held are gone."""
    held = [each.block for each in case.events if isinstance(each, Seen) and _held(each)]
    unix_s = next(each.facts["unix_s"] for each in case.events if isinstance(each, Began))
    case.samples(lambda _, some: [s for s in some if not any(b.start_s <= s.at_s - unix_s <= b.end_s for b in held)])


def _one_gpu(case: Case) -> None:
    """One of the GPUs was never there."""
    began = next(each for each in case.events if isinstance(each, Began))
    _facts(gpus=list(began.facts["gpus"])[:1])(case)


def _half_readings(case: Case) -> None:
    uuid = case.store.readings().gpus(RUN)[-1]
    case.store.tables.change("DELETE FROM readings WHERE gpu_uuid = :uuid", {"uuid": uuid})


def _no_pace(case: Case) -> None:
    _delete(case.store, "events", pace_stream(RUN))


def _total(factor: float | None) -> Change:
    return lambda case: case.total(factor)


def _all_power(factor: float) -> Change:
    return lambda case: case.power(lambda _: factor)


def _held_power(factor: float) -> Change:
    def change(case: Case) -> None:
        held = [each.block for each in case.events if isinstance(each, Seen) and _set(each)]
        case.power(lambda at_s: factor if any(b.start_s <= at_s <= b.end_s for b in held) else 1.0)

    return change


def _fitting_total(case: Case) -> None:
    """The measured total as the readings now have it."""
    joules = 0.0
    readings = case.store.readings()
    for uuid in readings.gpus(RUN):
        some = list(readings.samples(RUN, uuid))
        for one_s, other_s in itertools.pairwise(some):
            joules += (other_s.at_s - one_s.at_s) * ((one_s.power_w or 0.0) + (other_s.power_w or 0.0)) / 2
    run = one(case.store.tables, RUN)
    assert run is not None
    assert run.measured is not None
    case.total(joules / run.measured["energy_j"])


def _more_pace(case: Case) -> None:
    """Every step is two."""
    case.pace(lambda rows: [(start_s, end_s, phase, 2.0 * done) for start_s, end_s, phase, done in rows])


def _from_other(what: str) -> Change:
    """Readings, steps or journal of another honest run, under this name."""

    def change(case: Case) -> None:
        if what == "readings":
            uuids = case.store.readings().gpus(RUN)
            theirs = case.other.readings().gpus(RUN)
            samples = list(case.other.readings().samples(RUN, theirs[0]))
            _delete(case.store, "readings", RUN)
            for uuid in uuids:
                case.store.readings().write(RUN, uuid, samples)
        stream = {"pace": pace_stream(RUN), "journal": RUN}.get(what)
        if stream is not None:
            _delete(case.store, "events", stream)
            for _, event in case.other.journal(stream).read():
                case.store.journal(stream).append(event)

    return change


# Signatures.


def _signed_by_forger(case: Case) -> None:
    case.sign(case.forger)


def _signed_as_watcher(case: Case) -> None:
    """Signed by the forger's key, and said to be the watcher's."""
    signed = case.sign(case.forger)
    _delete(case.store, "events", countersigned_stream(RUN))
    keep(case.store, replace(signed, key=case.watcher.public))


def _signed_before(case: Case) -> None:
    """The watcher signed the honest run; then it was forged."""
    case.sign(case.watcher)


def _edited_statement(case: Case) -> None:
    """The watcher's signature of the honest run, with the forged seal written into it."""
    sealed = next(each.facts["seal"] for each in reversed(case.events) if isinstance(each, Finished))
    signed = case.sign(case.watcher, sha256="0" * 64)
    _delete(case.store, "events", countersigned_stream(RUN))
    keep(case.store, replace(signed, statement=replace(signed.statement, sha256=sealed["sha256"])))


def _signed_other_run(case: Case) -> None:
    """What the watcher signed of another run."""
    case.sign(case.watcher, run="20270101-000000-0000")
    journal = case.store.journal(countersigned_stream(RUN))
    for _, event in case.store.journal(countersigned_stream("20270101-000000-0000")).read():
        journal.append(event)


def _signed_late(case: Case) -> None:
    """Signed forty days after the run, whose clock is said to have run otherwise than the wall's."""
    _facts(speed=1.0001)(case)
    case.sign(case.watcher, at_unix_s=UNIX_S + 40 * 86400.0)


def _one_gpu_to_fit(case: Case) -> None:
    """One of the GPUs was never there, and the joules are those of the other."""
    _one_gpu(case)
    _joules(0.5, lambda _: True)(case)


_LIE = _joules(0.6, _set)
_LIE_TOO = _after(_LIE, _held_power(0.6), _fitting_total)
FORGERIES: dict[str, tuple[int, Change]] = {
    # joules
    "joules of everything set × 0.6": (REFUSED, _LIE),
    "joules held × 0.5": (REFUSED, _joules(0.5, _held)),
    "joules held × 0.8": (REFUSED, _joules(0.8, _held)),
    "joules held × 0.9": (REFUSED, _joules(0.9, _held)),
    "joules held × 0.94": (REFUSED, _joules(0.94, _held)),
    "joules of baseline windows × 1.3": (REFUSED, _joules(1.3, _role(Role.PROOF))),
    "joules at default × 1.2": (REFUSED, _joules(1.2, _default)),
    "joules at default × 1.08": (REFUSED, _joules(1.08, _default)),
    "joules of references × 1.2": (REFUSED, _joules(1.2, _role(Role.REFERENCE))),
    "joules of candidates × 0.85": (REFUSED, _joules(0.85, _role(Role.CANDIDATE))),
    "joules of the first baseline × 1.5": (REFUSED, _joules(1.5, _role(Role.BASELINE))),
    "joules of one block × 0.5": (REFUSED, _one_of(3, 0.5)),
    "joules of the longest-held end × 0.5": (REFUSED, _one_of(-2, 0.5)),
    "joules less and less": (REFUSED, _by_time),
    "joules of pairs made apart": (REFUSED, _swapped_joules),
    "joules of all × 1.4": (REFUSED, _joules(1.4, lambda _: True)),
    "joules at default × 1.06, set × 0.98": (REFUSED, _after(_joules(1.06, _default), _joules(0.98, _set))),
    "joules of windows × 1.06, references × 1.04, set × 0.98": (
        REFUSED,
        _after(_joules(1.06, _role(Role.PROOF)), _joules(1.04, _role(Role.REFERENCE)), _joules(0.98, _set)),
    ),
    "joules held × 0.9, default × 1.1": (REFUSED, _after(_joules(0.9, _held), _joules(1.1, _default))),
    # seconds
    "seconds held × 0.9": (REFUSED, _seconds(0.9, _held)),
    "seconds held × 0.9, not said": (REFUSED, _seconds(0.9, _held, left_out=False)),
    "seconds and joules held × 0.9": (REFUSED, _seconds(0.9, _held, joules=True)),
    "seconds of windows × 0.7": (REFUSED, _seconds(0.7, _role(Role.PROOF), joules=False)),
    "seconds and joules of everything set × 0.8": (REFUSED, _seconds(0.8, _set, joules=True)),
    # work
    "work held × 1.1": (REFUSED, _work(1.1, _held)),
    "work held × 1.05, in parts": (REFUSED, _work(1.05, _held, whole=False)),
    "a step more in every held block": (REFUSED, _one_step_more),
    "work of windows × 0.8": (REFUSED, _work(0.8, _role(Role.PROOF))),
    "work at default × 0.9": (REFUSED, _work(0.9, _default)),
    "work of candidates × 1.2": (REFUSED, _work(1.2, _role(Role.CANDIDATE))),
    # roles
    "windows called held": (REFUSED, _roles(Role.PROOF, Role.HOLD)),
    "every other held block called a probe": (REFUSED, _roles(Role.HOLD, Role.PROBE, _held, every=2)),
    "held blocks called candidates": (REFUSED, _roles(Role.HOLD, Role.CANDIDATE, _held)),
    "probes called held": (REFUSED, _roles(Role.PROBE, Role.HOLD, _set)),
    "references called baselines": (REFUSED, _roles(Role.REFERENCE, Role.BASELINE)),
    "baselines called windows": (REFUSED, _roles(Role.BASELINE, Role.PROOF)),
    # order of pairs, seed, share
    "roles of pairs turned": (REFUSED, _pairs_turned),
    "order of pairs turned": (REFUSED, _pair_order),
    "another seed": (REFUSED, _facts(seed=987654)),
    "another promised share": (REFUSED, _facts(proof_share=0.001)),
    # how it ran
    "a clock 500 times as fast, default × 1.2, set × 0.98": (
        REFUSED,
        _after(_facts(speed=500.0), _joules(1.2, _default), _joules(0.98, _set)),
    ),
    "a clock 250 times as fast, default × 1.1, set × 0.98": (
        REFUSED,
        _after(_facts(speed=250.0), _joules(1.1, _default), _joules(0.98, _set)),
    ),
    "virtual told as real": (REFUSED, _facts(virtual=False)),
    "another GPU's name": (REFUSED, _facts(gpu_names=["NVIDIA B300"])),
    # windows and blocks left out, cut, doubled
    "a window left out": (REFUSED, _without(_role(Role.PROOF), 0)),
    "all windows left out": (REFUSED, _without(_role(Role.PROOF))),
    "a window's block left out": (REFUSED, _without(_role(Role.PROOF), -1, how="block")),
    "all windows came to nothing": (REFUSED, _without(_role(Role.PROOF), how="void")),
    "a window left out, the hole closed": (REFUSED, _without(_role(Role.PROOF), 0, how="closed")),
    "all references left out": (REFUSED, _without(_role(Role.REFERENCE))),
    "a held block left out": (REFUSED, _without(_held, 2)),
    "a held block left out, the hole closed": (REFUSED, _without(_held, 2, how="closed")),
    "the end left out": (REFUSED, _cut(0.7)),
    "most left out at the end": (REFUSED, _cut(0.45)),
    "the best block doubled": (REFUSED, _doubled(_held, 1)),
    "the best block ten times": (REFUSED, _doubled(_held, 10)),
    "the best block doubled in place": (REFUSED, _doubled(_held, 1, later=False)),
    "all an hour later": (BLOCKS, _all_moved(3600.0)),
    # claims, settings
    "a larger claim": (REFUSED, _claimed(energy_change=3.0)),
    "a surer claim": (REFUSED, _claimed(energy_change_error=0.1)),
    "a faster claim": (REFUSED, _claimed(time_change=0.1)),
    "not sealed again": (REFUSED, _unsealed),
    "a setting that was never run": (REFUSED, _chosen),
    "said to be 600 MHz": (REFUSED, _other_setting(600.0)),
    # totals, and evidence that was removed
    "the measured total × 0.7": (REFUSED, _total(0.7)),
    "joules of all and the total × 1.4": (REFUSED, _after(_joules(1.4, lambda _: True), _total(1.4))),
    "joules held × 0.9, total × 0.92": (REFUSED, _after(_joules(0.9, _held), _total(0.92))),
    "joules × 0.6, no total": (REFUSED, _after(_LIE, _total(None))),
    "joules × 0.6, no readings": (BLOCKS, _after(_LIE, _no_readings)),
    "joules × 0.6, no readings of what was held": (BLOCKS, _after(_LIE, _few_readings)),
    "work × 1.1, no steps": (BLOCKS, _after(_work(1.1, _held), _no_pace)),
    "joules × 0.6, no steps": (REFUSED, _after(_LIE, _no_pace)),
    # evidence that was rewritten or swapped
    "readings × 0.8, the journal honest": (REFUSED, _all_power(0.8)),
    "readings of another run": (REFUSED, _from_other("readings")),
    "steps of another run": (REFUSED, _from_other("pace")),
    "journal of another run": (BLOCKS, _from_other("journal")),
    "joules of everything set × 0.6, readings too": (READINGS, _LIE_TOO),
    "joules and readings × 0.6, total as it was": (READINGS, _after(_LIE, _held_power(0.6))),
    "joules and readings × 0.6, no total": (READINGS, _after(_LIE, _held_power(0.6), _total(None))),
    "joules, readings and total × 1.4": (
        READINGS,
        _after(_joules(1.4, lambda _: True), _all_power(1.4), _total(1.4)),
    ),
    "work and steps × 2": (READINGS, _after(_work(2.0, lambda _: True), _more_pace)),
    "a clock 500 times as fast, default × 1.5, nothing kept of how it ran": (
        BLOCKS,
        _after(_facts(speed=500.0), _joules(1.5, _default), _total(None)),
    ),
    # signatures
    "signed by the forger": (REFUSED, _after(_LIE, _signed_by_forger)),
    "no readings, signed by the forger": (BLOCKS, _after(_LIE, _no_readings, _signed_by_forger)),
    "readings too, signed by the forger": (READINGS, _after(_LIE_TOO, _signed_by_forger)),
    "signed by the forger as the watcher": (READINGS, _after(_LIE_TOO, _signed_as_watcher)),
    "forged after the watcher signed": (READINGS, _after(_signed_before, _LIE_TOO)),
    "readings removed after the watcher signed": (BLOCKS, _after(_signed_before, _LIE, _no_readings)),
    "the watcher's statement edited": (READINGS, _after(_LIE_TOO, _edited_statement)),
    "signed late, a clock of its own": (REFUSED, _signed_late),
    "what the watcher signed of another run": (READINGS, _after(_LIE_TOO, _signed_other_run)),
}
"""What is forged → what it deserves at most, and how it is made."""
_SMALL = {
    "joules held × 0.94",
    "joules at default × 1.08",
    "joules at default × 1.06, set × 0.98",
    "joules of windows × 1.06, references × 1.04, set × 0.98",
}
"""Changes of the saving by some per cent: runs of which the readings tell less are not refused, but state it."""
_TWO_GPUS: dict[str, tuple[int, Change]] = {
    "one of two GPUs was never there": (REFUSED, _one_gpu),
    "one of two GPUs was never there, joules to fit": (REFUSED, _one_gpu_to_fit),
    "joules held × 0.8, of two GPUs": (REFUSED, _joules(0.8, _held)),
    "joules held × 0.8, one GPU's readings gone": (BLOCKS, _after(_joules(0.8, _held), _half_readings)),
}


def rank(label: str | None) -> int:
    """How strong a label is; 0: refused."""
    if label is None:
        return REFUSED
    if label.startswith(COUNTERSIGNED):
        return _SIGNED
    return {FROM_BLOCKS: BLOCKS, AGAINST_READINGS: READINGS}[label]


def examine(case: Case, *, key: bool) -> dict[str, Any]:
    """What ``verify`` says of a store, by a verifier who brings the watcher's key, or none."""
    events = [event for _, event in case.store.journal(RUN).read()]
    return examined(case.store, RUN, events, trusted={case.watcher.public: "watcher"} if key else None)


def _content(case: Case) -> tuple[object, ...]:
    """All of a run that a store keeps."""
    events = [event for _, event in case.store.journal(RUN).read()]
    signed = [event for _, event in case.store.journal(countersigned_stream(RUN)).read()]
    return (*map(to_json, (*events, *signed)), evidence(case.store, RUN, events).digest)


@dataclass(frozen=True)
class Folder:
    """Where honest runs lie, each in a store of its own, and the keys."""

    at: Path
    forger: SigningKey
    watcher: SigningKey

    def open(self, honest: Path, other: Path) -> Case:
        """A copy of an honest run."""
        copy = self.at / "forged.db"
        copy.unlink(missing_ok=True)
        shutil.copy(honest, copy)
        store = SqliteStore(Database(copy))
        events = [event for _, event in store.journal(RUN).read()]
        return Case(store, events, SqliteStore(Database(other)), self.forger, self.watcher)

    def run(self, honest: Path, other: Path, change: Change) -> list[dict[str, Any]]:
        """What is said of one forgery, without a key and with the watcher's."""
        case = self.open(honest, other)
        try:
            before = _content(case)
            change(case)
            if _content(case) == before:
                raise ValueError("nothing was forged")
            return [examine(case, key=False), examine(case, key=True)]
        finally:
            case.store.close()
            case.other.close()


def honest_runs(at: Path, seed: int, names: Sequence[str] = ()) -> dict[str, Path]:
    """Kind → the store of an honest run of it."""
    found = {}
    for kind in kinds(seed):
        if names and kind.name not in names:
            continue
        path = found[kind.name] = at / f"{kind.seed}.db"
        store = SqliteStore(Database(path))
        make(store, kind, RUN)
        store.close()
    return found


_SIDES: dict[str, Callable[[float], Change]] = {
    "set": lambda share: _joules(1.0 - share, _set),
    "default": lambda share: _joules(1.0 + share, _default),
    "both": lambda share: _after(_joules(1.0 - share / 2, _set), _joules(1.0 + share / 2, _default)),
}
_MOST_UNSEEN, _HALVINGS = 0.16, 6  # to a quarter of a per cent


@dataclass(frozen=True, slots=True)
class Unseen:
    """The largest forgery of one run, on one side, that is not refused."""

    side: str
    change: float
    """Of the saving, as a share of the joules without it."""
    tolerance: float
    """As ``verify`` prints it."""
    overstated: bool
    """Whether what is printed beside the label does not hold the forged saving and the honest one."""


def truth(folder: Folder, honest: Path) -> dict[str, Any]:
    """What is said of an honest run."""
    case = folder.open(honest, honest)
    try:
        return examine(case, key=False)
    finally:
        case.store.close()
        case.other.close()


def unseen(folder: Folder, honest: Path) -> list[Unseen]:
    """What would not be noticed of an honest run; none where that is not checked against readings."""
    before = truth(folder, honest)
    if before["label"] != AGAINST_READINGS or before["readings"]["saving"] is None:
        return []
    found = []
    for side, forged in _SIDES.items():
        passes, refused, best = 0.0, _MOST_UNSEEN, None
        for _ in range(_HALVINGS):
            share = (passes + refused) / 2
            said, _ = folder.run(honest, honest, forged(share))
            if said["label"] is None:
                refused = share
            else:
                passes, best = share, said
        if best is not None:
            found.append(_unseen(side, best, before["claim"]["energy_change"]))
    return found


def _unseen(side: str, said: dict[str, Any], honest: float) -> Unseen:
    forged, readings = said["claim"]["energy_change"], said["readings"]
    saving, tolerance = readings["saving"], readings["tolerance"]
    printed = any("these alone say" in line and "(tolerance)" in line for line in label_lines(said))
    held = printed and max(abs(forged - saving), abs(honest - saving)) <= tolerance
    return Unseen(side, abs(forged - honest), tolerance, not held)


def figures(seed: int) -> dict[str, float]:
    """Make honest runs, forge them, and count; what a label was too strong for is told on stderr."""
    with tempfile.TemporaryDirectory(prefix="joulewise-forgeries-") as name:
        at = Path(name)
        folder = Folder(at, SigningKey.open(at / "forger.key"), SigningKey.open(at / "watcher.key"))
        honest = honest_runs(at, seed)
        first, other, two = honest["steady"], honest["evaluations"], honest["two GPUs"]
        refused = against = 0
        for kind, path in honest.items():
            found = truth(folder, path)
            refused += found["label"] is None
            against += found["label"] == AGAINST_READINGS
            if found["label"] is None:
                print(f"honest and refused: {kind}: {found['problems'][:3]}", file=sys.stderr)
        count = overstated = turned_away = 0
        share = 0.0
        for path, forgeries in ((first, FORGERIES), (two, _TWO_GPUS)):
            for what, (deserves, change) in forgeries.items():
                said = folder.run(path, other, change)
                ranks = [rank(each["label"]) for each in said]
                count += 1
                turned_away += max(ranks) == REFUSED
                tolerated = False
                if what in _SMALL and max(ranks) == READINGS:
                    small = _unseen(what, said[0], truth(folder, path)["claim"]["energy_change"])
                    tolerated, share = not small.overstated, max(share, small.change / small.tolerance)
                if max(ranks) > deserves and not tolerated:
                    overstated += 1
                    print(f"overstated: {what}: {[each['label'] for each in said]}", file=sys.stderr)
        most = Unseen("", 0.0, 0.0, overstated=False)
        for kind, path in honest.items():
            for each in unseen(folder, path):
                count += 1
                overstated += each.overstated
                most, share = max(most, each, key=lambda one: one.change), max(share, each.change / each.tolerance)
                if each.overstated:
                    print(f"overstated: {kind}, {each}", file=sys.stderr)
    return {
        "forgeries": float(count),
        "forged_overstated": float(overstated),
        "forged_refused": float(turned_away),
        "honest": float(len(honest)),
        "honest_refused": float(refused),
        "honest_against_readings": float(against),
        "unseen_change": most.change,
        "unseen_stated": most.tolerance,
        "unseen_share": share,
    }
