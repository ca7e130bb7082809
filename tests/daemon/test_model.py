"""R13: random operations on the real service, a hundred thousand in all, against a reference without any of its code.

The service runs on virtual time and virtual GPUs, with real files for what it saves. After every operation the answer
must be the one that the reference gives, every knob must show what the reference says, no lease may be left that it
does not know. A restart, which may come at any moment, throws the service away and lets another one replay its files.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from joulewise.core.knob import Setting
from joulewise.core.timeline import VirtualTime
from joulewise.daemon.audit import Audit
from joulewise.daemon.grants import Grant
from joulewise.daemon.policy import ANY, Bound, PaceLimits, Policy, Range, Rule
from joulewise.daemon.service import Service
from joulewise.daemon.station import Station
from joulewise.daemon.worker import Inline
from joulewise.device.keeper import Keeper
from joulewise.device.saved import Saved
from joulewise.device.virtual import VirtualGpu
from joulewise.device.virtual_controls import VirtualControls
from joulewise.model import catalog
from tests.daemon.reference import CLOCKS, LIMIT, MEMORY, PARTY_S, SM, Loan, Party, World
from tests.tiers import ALL, SEED, examples, sample

OPERATIONS, PARTS = 100_000, 4
POLL_S = 4.0
STALL_S, RETRY_S, MOMENT_S = 6.07, 5.0, 0.17
NOTICED_S = 16.09
"""A reload that changes no limit shows in the energy counter alone, which is dear to read: every 12 s on an H200."""
MOST_PARTIES = 50
"""That one user begins within half a minute; beyond 64 the service would say so, which is not the question here."""
ROOT, RULED, GRANTED = 0, 1001, 1002
BASELINE = {SM: 1500.0}
SHM = Path("/dev/shm")

KNOBS = [frozenset({LIMIT}), frozenset({SM}), frozenset({LIMIT, SM}), frozenset({LIMIT, SM, MEMORY})]
# No sum of these durations is a lease's, a grant's or a party's: at the very moment of an end both answers are right.
# Ours are whole numbers and a foreign writer's are not, since equal ones cannot be told apart by anybody.
clients = st.integers(0, 3)
gpu_numbers = st.integers(0, 2)
some_gpus = st.sampled_from([(0,), (1,), (2,), (0, 1), (2, 1), (0, 1, 2)])
limits_w = st.integers(30, 71).map(lambda number: 10.0 * number)
clocks_mhz = st.integers(23, 132).map(lambda number: 15.0 * number)
settings_ = st.fixed_dictionaries(
    {}, optional={LIMIT: limits_w, SM: clocks_mhz, MEMORY: st.sampled_from([2201.0, 3201.0])}
)
USERS = (ROOT, RULED, GRANTED, RULED)

done = restarts = 0


_identities = itertools.count(1)


class Someone:
    """A connection, without the connection."""

    def __init__(self, number: int) -> None:
        self.uid = self.gid = USERS[number]
        self.pid = 100 + number
        self.groups = frozenset({self.uid})
        self.command, self.started, self.pending = f"client {number}", 1, 0
        self.answers: dict[int, dict[str, Any]] = {}
        self.identity = next(_identities)
        """Who it is in the reference: a new connection is somebody else, though the process be the same."""

    def cgroups(self) -> tuple[str, ...]:
        return ()

    def send(self, line: bytes) -> None:
        message = json.loads(line)
        if "event" not in message:
            assert message["id"] not in self.answers, "a request was answered twice"
            self.answers[message["id"]] = message


class Given:
    """Grants that are given here and now, without their folder."""

    problems = ()

    def __init__(self, now: Callable[[], float]) -> None:
        self.grants: dict[str, Grant] = {}
        self._now = now

    def live(self) -> tuple[Grant, ...]:
        return tuple(grant for grant in self.grants.values() if grant.expires_unix_s > self._now())


class Leases(RuleBasedStateMachine):
    """The service and the reference, side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.time = VirtualTime(1024.0)
        model = catalog.load("h200")
        # A counter that costs nothing is looked at each time, so that the reference need not know when.
        cheap = replace(model.sensors, counter_call_s=0.0)
        self.gpus = [
            VirtualGpu(model, time=self.time, index=index, seed=7, gain=1.0, sensors=cheap) for index in range(3)
        ]
        self.time.sleep(64.0)  # the counters have something to lose
        self.uuids = [gpu.info.uuid for gpu in self.gpus]
        space = self.gpus[0].info.space
        self.ranges = {knob: (choices.low, choices.high) for knob, choices in space.knobs.items()}
        self.world = World(self.uuids, model.default_limit_w, baseline=BASELINE, by_grant=GRANTED)
        self.world.now_s = self.time.now_s()
        self.folder = Path(tempfile.mkdtemp(prefix="joulewise-model-", dir=SHM if SHM.is_dir() else None))
        self.given = Given(self.time.now_s)
        self.loans: list[Loan] = []
        self.slots: dict[Loan, int] = {}
        self.ids = itertools.count(1)
        self.names = itertools.count(1)
        self.reloaded_s = dict.fromkeys(self.uuids, self.time.now_s())
        self.open: list[Saved] = []
        self.audit = Audit(self.folder / "log" / "audit.jsonl", most_bytes=1 << 20)
        narrow = Range(Bound(350.0), Bound(650.0))
        self.policy = Policy(
            # Nobody else is named: the third user has grants or nothing.
            rules=(Rule(users=frozenset({RULED}), knobs={LIMIT: narrow, SM: ANY, MEMORY: ANY}, needs="nothing"),),
            ttl_most_s=60.0,
            poll_s=POLL_S,
            pace=PaceLimits(1e9, 1e9),
            baselines={"*": Setting(**BASELINE)},
        )
        self.start()

    def start(self) -> None:
        self.executor = Inline()
        self.people = [Someone(number) for number in range(len(USERS))]
        stations = [
            Station(VirtualControls(gpu), self.open_keeper, self.executor, self.time.now_s, index=index)
            for index, gpu in enumerate(self.gpus)
        ]
        self.service = Service(
            stations, policy=self.policy, grants=self.given, audit=self.audit, time=self.time, unix=self.time.now_s
        )  # type: ignore[arg-type]
        self.service.start()
        self.executor.deliver()

    def open_keeper(self, controls: Any) -> Keeper:
        saved = Saved.open(self.folder / "state", controls.uuid)
        self.open.append(saved)
        return Keeper(controls, saved, baseline=Setting(**BASELINE))

    def teardown(self) -> None:
        for saved in self.open:
            saved.close()
        self.audit.close()
        shutil.rmtree(self.folder)

    # How the two are driven.

    def ask(self, client: int, op: str, **fields: Any) -> tuple[str | None, dict[str, Any]]:
        """What the service answers: the error's name, and the answer."""
        number = self.begin(client, op, **fields)
        self.executor.deliver()
        return self.end(client, number)

    def begin(self, client: int, op: str, *, counts: int = 1, **fields: Any) -> int:
        global done
        done += counts
        number = next(self.ids)
        self.service.request(self.people[client], json.dumps({"id": number, "op": op, **fields}).encode())
        return number

    def end(self, client: int, number: int) -> tuple[str | None, dict[str, Any]]:
        answer = self.people[client].answers.pop(number)
        return answer.get("error"), answer.get("ok", {})

    def wait(self, duration_s: float) -> None:
        """Let time pass on both sides, stopping wherever the service has something to do."""
        begun_s = self.time.now_s()
        ends_s = begun_s + duration_s
        for _, until_s in self.world.grants.values():
            if begun_s < until_s <= ends_s:  # that a right has ended is noticed by the next poll at the latest
                ends_s = max(ends_s, until_s + POLL_S + MOMENT_S)
        while True:
            self.service.tick()
            self.executor.deliver()
            due_s = self.service.due_in_s()
            left_s = ends_s - self.time.now_s()
            if left_s <= 0:
                break
            # A microsecond at least: the last digit of a float must not stop the clock.
            self.time.sleep(min(left_s, max(due_s, 1e-6)) if due_s is not None else left_s)
        self.world.pass_to(self.time.now_s())

    def may(self, loan: Loan) -> dict[str, tuple[float, float]]:
        if loan.uid == RULED:
            return {**self.ranges, LIMIT: (350.0, 650.0)}
        if loan.uid == GRANTED:
            return {**self.ranges, LIMIT: (350.0, self.ranges[LIMIT][1])}  # half of the default on
        return self.ranges

    def some_loan(self, number: int) -> Loan:
        """Mostly one that lives."""
        alive = self.world.loans
        chosen = alive if alive and number % 8 else self.loans
        return chosen[number % len(chosen)]

    def uuids_of(self, numbers: tuple[int, ...]) -> tuple[str, ...]:
        return tuple(self.uuids[number] for number in numbers)

    # Clients.

    def take_on_both(
        self, client: int, gpus: tuple[str, ...], knobs: frozenset[str], ttl_s: float, party: Party | None = None
    ) -> Loan | None:
        expected = self.world.take(self.people[client].identity, USERS[client], gpus, knobs, ttl_s, party)
        together = {} if party is None else {"together": {"name": party.name, "size": party.size}}
        error, answer = self.ask(client, "take", gpus=list(gpus), knobs=sorted(knobs), ttl_s=ttl_s, **together)
        wanted = {None} if isinstance(expected, Loan) else expected
        assert error in wanted, f"take was answered {error}, and should be {wanted}"
        if isinstance(expected, Loan):
            expected.name = answer["lease"]
            self.loans.append(expected)
            self.slots[expected] = client
            return expected
        return None

    def apply_on_both(self, loan: Loan, setting: dict[str, float]) -> None:
        """By its owner, of the setting what the loan covers."""
        covered = {knob: value for knob, value in setting.items() if knob in loan.knobs}
        expected = self.world.apply(loan.client, loan, covered, loan.gpus, self.may(loan))
        error, _ = self.ask(self.slots[loan], "apply", lease=loan.name, setting=covered)
        assert error == expected, f"apply was answered {error}, and should be {expected}"
        self.end_if_astray(loan, error)

    def end_if_astray(self, loan: Loan, error: str | None) -> None:
        """An apply that fails on a lost GPU may have to end its lease: nobody can say any more what is set there."""
        if error == "GpuLost" and not loan.ended:
            listed = self.end(ROOT, self.begin(ROOT, "leases", counts=0))[1]["leases"]
            if not any(lease["lease"] == loan.name and lease["stage"] == "held" for lease in listed):
                self.world.end(loan)

    @rule(client=clients, numbers=some_gpus, knobs=st.sampled_from(KNOBS), ttl=st.integers(1, 60))
    def take(self, client: int, numbers: tuple[int, ...], knobs: frozenset[str], ttl: int) -> None:
        self.take_on_both(client, self.uuids_of(numbers), knobs, ttl - 0.47)

    @rule(client=clients, number=gpu_numbers, knobs=st.sampled_from(KNOBS), size=st.integers(1, 3))
    def join(self, client: int, number: int, knobs: frozenset[str], size: int) -> None:
        uid = USERS[client]
        open_ = [party for party in self.world.parties if party.uid == uid and not (party.failed or party.complete)]
        begun = [party for party in self.world.parties if party.uid == uid and party.until_s > self.world.now_s]
        if open_:
            party = open_[0]
        elif len(begun) >= MOST_PARTIES:
            return
        else:
            party = Party(f"party-{next(self.names)}", uid, size, self.world.now_s + PARTY_S)
            self.world.parties.append(party)
        self.take_on_both(client, (self.uuids[number],), knobs, 45.53, party)

    @precondition(lambda self: self.loans)
    @rule(number=st.integers(0, 255), setting=settings_, stranger=st.integers(0, 15), some=st.booleans())
    def apply(self, number: int, setting: dict[str, float], stranger: int, some: bool) -> None:
        loan = self.some_loan(number)
        if number % 3:  # mostly what the lease covers
            setting = {knob: value for knob, value in setting.items() if knob in loan.knobs}
        client = self.slots[loan] if stranger else (self.slots[loan] + 1) % len(USERS)
        gpus = loan.gpus[: 1 + number % len(loan.gpus)] if some else loan.gpus
        expected = self.world.apply(self.people[client].identity, loan, setting, gpus, self.may(loan))
        partly = {"gpus": list(gpus)} if some else {}
        error, answer = self.ask(client, "apply", lease=loan.name, setting=setting, **partly)
        assert error == expected, f"apply was answered {error}, and should be {expected}"
        self.end_if_astray(loan, error)
        if error is None:
            for gpu, effective in answer["effective"].items():
                for knob in loan.knobs:
                    if knob == LIMIT or knob in setting:
                        assert effective[knob] == self.world.hardware[gpu][knob]

    @precondition(lambda self: self.loans)
    @rule(number=st.integers(0, 255), stranger=st.integers(0, 15))
    def beat(self, number: int, stranger: int) -> None:
        loan = self.some_loan(number)
        client = self.slots[loan] if stranger else (self.slots[loan] + 1) % len(USERS)
        assert self.ask(client, "beat", lease=loan.name)[0] == self.world.beat(self.people[client].identity, loan)

    @precondition(lambda self: self.loans)
    @rule(number=st.integers(0, 255), stranger=st.integers(0, 15))
    def release(self, number: int, stranger: int) -> None:
        loan = self.some_loan(number)
        client = self.slots[loan] if stranger else (self.slots[loan] + 1) % len(USERS)
        assert self.ask(client, "release", lease=loan.name)[0] == self.world.release(self.people[client].identity, loan)

    @rule(client=clients)
    def die(self, client: int) -> None:
        global done
        done += 1
        gone = self.people[client]
        self.service.gone(gone, "its process ended")
        self.executor.deliver()
        self.people[client] = Someone(client)
        self.world.die(gone.identity)

    @rule(numbers=some_gpus, for_s=st.sampled_from([0.0, 3.53, 20.53]))
    def quiet(self, numbers: tuple[int, ...], for_s: float) -> None:
        assert self.ask(ROOT, "quiet", gpus=list(self.uuids_of(numbers)), for_s=for_s)[0] is None
        for gpu in self.uuids_of(numbers):
            self.world.quiet[gpu, self.people[ROOT].identity] = self.world.now_s + for_s

    @precondition(lambda self: self.world.loans)
    @rule(number=st.integers(0, 255))
    def end_by_root(self, number: int) -> None:
        loan = self.some_loan(number)
        assert self.ask(ROOT, "end", lease=loan.name)[0] is None
        if loan in self.world.loans:
            self.world.end(loan)

    # The site.

    @rule(number=gpu_numbers, knob=st.sampled_from(CLOCKS), value=st.none() | st.just(0.5))
    def stand(self, number: int, knob: str, value: float | None) -> None:
        gpu = self.uuids[number]
        if gpu in self.world.lost or self.world.is_quiet(gpu):
            return
        if value is not None:
            value = 1305.0 if knob == SM else 3201.0
        assert self.ask(ROOT, "stand", gpus=[gpu], setting={knob: value})[0] is None
        self.world.stand(gpu, knob, value)

    @rule(numbers=some_gpus, for_s=st.sampled_from([10.21, 100.21]))
    def grant(self, numbers: tuple[int, ...], for_s: float) -> None:
        global done
        done += 1
        name, until_s = f"grant-{next(self.names)}", self.time.now_s() + for_s
        gpus = self.uuids_of(numbers)
        self.given.grants[name] = Grant(name, GRANTED, gpus, None, None, until_s)
        self.world.grants[name] = (gpus, until_s)

    @precondition(lambda self: self.world.grants)
    @rule(number=st.integers(0, 255))
    def revoke(self, number: int) -> None:
        global done
        done += 1
        name = sorted(self.world.grants)[number % len(self.world.grants)]
        del self.world.grants[name], self.given.grants[name]
        self.wait(POLL_S + MOMENT_S)

    # The world.

    @rule(duration_s=st.sampled_from([0.13, 1.01, 5.03, 20.07, 61.11]))
    def pass_time(self, duration_s: float) -> None:
        global done
        done += 1
        self.wait(duration_s)

    @rule(number=gpu_numbers, knob=st.sampled_from([LIMIT, LIMIT, SM]), step=st.integers(0, 20))
    def foreign(self, number: int, knob: str, step: int) -> None:
        global done
        gpu = self.uuids[number]
        if gpu in self.world.lost:
            return
        done += 1
        value = 300.5 + step if knob == LIMIT else 360.0 + 15.0 * step
        VirtualControls(self.gpus[number]).write(knob, value)
        self.world.hardware[gpu][knob] = value

    @rule(number=gpu_numbers, then=st.sampled_from(["nothing", "apply", "release", "die"]), limit_w=limits_w)
    def reload(self, number: int, then: str, limit_w: float) -> None:
        """The driver is started anew; before anybody notices, a lease of that GPU may be used once more."""
        global done
        gpu = self.uuids[number]
        # A counter that has hardly begun again cannot be told from one that has begun once more.
        if gpu in self.world.lost or self.time.now_s() - self.reloaded_s[gpu] < 60.0:
            return
        done += 1
        self.reloaded_s[gpu] = self.time.now_s()
        self.gpus[number].reload_driver()
        self.world.reload(gpu)
        loans = [loan for loan in self.world.loans if gpu in loan.gpus and not loan.ended]
        if loans and then == "apply":
            self.apply_on_both(loans[0], {LIMIT: limit_w, SM: 1200.0})
        elif loans and then == "release":
            assert self.ask(self.slots[loans[0]], "release", lease=loans[0].name)[0] is None
            self.world.release(loans[0].client, loans[0])
        elif loans and then == "die":
            self.die(self.slots[loans[0]])
        self.wait(NOTICED_S)
        self.world.noticed(gpu)

    @rule(number=gpu_numbers)
    def lose(self, number: int) -> None:
        global done
        done += 1
        self.gpus[number].fault(lost=True)
        self.world.lost.add(self.uuids[number])

    @precondition(lambda self: self.world.lost)
    @rule(number=st.integers(0, 255), client=clients, knobs=st.sampled_from(KNOBS))
    def find(self, number: int, client: int, knobs: frozenset[str]) -> None:
        """A lost GPU answers again; before anything that is owed there is paid, somebody may come."""
        global done
        done += 1
        gpu = sorted(self.world.lost)[number % len(self.world.lost)]
        self.gpus[self.uuids.index(gpu)].clear()
        self.world.lost.discard(gpu)
        if number % 2:
            loan = self.take_on_both(client, (gpu,), knobs, 45.53)
            if loan is not None:
                self.apply_on_both(loan, {LIMIT: 444.0, SM: 1200.0})
        self.world.answers_again(gpu)
        self.wait(RETRY_S + MOMENT_S)

    @precondition(lambda self: self.world.loans)
    @rule(number=st.integers(0, 255), limit_w=limits_w)
    def hang(self, number: int, limit_w: float) -> None:
        """A driver call does not come back for a while: answered, and undone when it does."""
        loan = self.some_loan(number)
        gpu = loan.gpus[number % len(loan.gpus)]
        if loan.ended or loan.party is not None or set(loan.gpus) & self.world.lost or LIMIT not in loan.knobs:
            return
        low, high = self.may(loan)[LIMIT]
        if not low <= limit_w <= high or any(self.world.is_quiet(each) for each in loan.gpus):
            return
        self.executor.hold(gpu)
        request = self.begin(self.slots[loan], "apply", lease=loan.name, setting={LIMIT: limit_w})
        # As good as lost, for as long as it lasts; and what was asked for is not done, or undone.
        self.world.lost.add(gpu)
        assert self.world.apply(loan.client, loan, {LIMIT: limit_w}, loan.gpus, self.may(loan)) == "GpuLost"
        self.wait(STALL_S)
        assert self.end(self.slots[loan], request)[0] in ("GpuStalled", "LeaseLost")
        self.executor.let_go(gpu)
        self.executor.deliver()
        self.world.answers_again(gpu)
        self.wait(RETRY_S + MOMENT_S)

    @rule()
    def restart(self) -> None:
        global done, restarts
        done, restarts = done + 1, restarts + 1
        for saved in self.open:
            saved.close()
        self.open.clear()
        self.world.restart()
        self.start()

    # What must always be so.

    @invariant()
    def all_is_as_the_reference_says(self) -> None:
        """Every knob, every lease, and nobody waits."""
        for gpu, uuid in zip(self.gpus, self.uuids, strict=True):
            asked = VirtualControls(gpu).asked()
            for knob, wanted in self.world.hardware[uuid].items():
                found = asked.get(knob, self.world.default_w if knob == LIMIT else None)
                base = self.world.base(uuid, knob) if knob in CLOCKS else None
                adrift = (uuid, knob) in self.world.adrift and wanted is None
                if found == base and (adrift or (uuid, knob) in self.world.unsure):
                    self.world.hardware[uuid][knob] = found
                else:
                    assert found == wanted, f"{knob} of {uuid} is {found}, and should be {wanted}"
        self.world.unsure.clear()

        listed = self.end(ROOT, self.begin(ROOT, "leases", counts=0))[1]["leases"]
        names = {lease["lease"] for lease in listed if lease["stage"] != "owed"}
        left = [lease for lease in listed if lease["stage"] == "owed"]
        self.world.forgive(((gpu, knob) for lease in left for gpu in lease["gpus"] for knob in lease["knobs"]), names)
        known = {loan.name for loan in self.world.loans}
        assert names == known, f"leases are {names}, and should be {known}"
        # What a daemon that is dead still owes is listed too, and is no lease that somebody holds.
        owed = {gpu for lease in left for gpu in lease["gpus"]}
        surely, perhaps = self.world.orphaned()
        assert surely <= owed <= perhaps, f"{owed} is owed, and should be {surely} to {perhaps}"
        assert [someone.pending for someone in self.people] == [0] * len(self.people), "somebody waits for an answer"
        unasked = [someone.answers for someone in self.people if someone.answers]
        assert not unasked, f"somebody was answered who had not asked: {unasked}"


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("part", sample(range(PARTS), 1, of="operations"))
def test_a_hundred_thousand_operations_diverge_nowhere_from_the_reference(part: int, scenario: Any) -> None:
    what = f"random operations (stateful) against a reference, part {part + 1} of {PARTS}"
    shown = scenario(
        "R13", what, criterion=f"{OPERATIONS:,} in all: no divergence, no leaked lease, journal consistent"
    )
    begun, replayed = done, restarts
    other = os.environ.get("JOULEWISE_SEED", "" if ALL else f"{SEED}")
    for again in itertools.count():
        # Seeded, so that everybody sees the same histories; JOULEWISE_SEED shows others, and so does a sample's SEED.
        run_state_machine_as_test(  # type: ignore[no-untyped-call]
            seed(f"{other}/{part}/{again}")(Leases),
            settings=settings(
                max_examples=examples(20),
                stateful_step_count=400,
                deadline=None,
                database=None,
                phases=[Phase.generate, Phase.shrink],
                suppress_health_check=list(HealthCheck),
            ),
        )
        if done - begun >= examples(OPERATIONS) / PARTS:
            break
    shown.saw(f"{done - begun:,} operations, {restarts - replayed:,} restarts with replay: none diverged")
