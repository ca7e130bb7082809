"""What the daemon decides, on virtual time: lives of leases, rights that end, drivers that hang, daemons that die.

Random histories against a reference are in test_model; here each promise has its sentence.
"""

from __future__ import annotations

import gc
import itertools
import json
import time as clock
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from joulewise.core.errors import GpuLost
from joulewise.core.knob import Setting
from joulewise.core.timeline import VirtualTime
from joulewise.daemon.audit import Audit
from joulewise.daemon.book import MOST_PARTIES, Held
from joulewise.daemon.grants import Grant, Grants, add, remove
from joulewise.daemon.policy import Bound, PaceLimits, Policy, Range, Rule
from joulewise.daemon.rights import Seen
from joulewise.daemon.service import LOOK_AGAIN_S, Service
from joulewise.daemon.station import LATE_S, Station
from joulewise.daemon.worker import Inline
from joulewise.device.controls import Controls
from joulewise.device.keeper import Keeper
from joulewise.device.saved import Saved
from joulewise.device.virtual import VirtualGpu
from joulewise.device.virtual_controls import VirtualControls
from joulewise.model import catalog

LIMIT, SM = "power_limit_w", "sm_mhz"
ALICE, BOB = 1000, 1001
EVERYONE = Policy(rules=(Rule(needs="nothing"),), pace=PaceLimits(1e6, 1e6), ttl_most_s=100.0)


class Person:
    """A client without a connection: what it is told is kept."""

    pids = itertools.count(100)

    def __init__(self, house: House, uid: int = 0) -> None:
        self.house = house
        self.uid = self.gid = uid
        self.pid = next(self.pids)
        self.groups = frozenset({uid})
        self.command, self.started, self.pending = "python", 1, 0
        self.answers: dict[int, dict[str, Any]] = {}
        self.events: list[dict[str, Any]] = []
        self._ids = itertools.count(1)

    def cgroups(self) -> tuple[str, ...]:
        return ("/",)

    def send(self, line: bytes) -> None:
        said = json.loads(line)
        if "event" in said:
            self.events.append(said)
        else:
            assert said["id"] not in self.answers, "answered twice"
            self.answers[said["id"]] = said

    def begin(self, op: str, **fields: Any) -> int:
        """Ask, without letting hardware calls run."""
        number = next(self._ids)
        self.house.service.request(self, json.dumps({"id": number, "op": op, **fields}).encode())
        return number

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """Ask, and have the answer: what is ok, or ``error`` and ``message``."""
        number = self.begin(op, **fields)
        self.house.executor.deliver()
        return self.answer(number)

    def answer(self, number: int) -> dict[str, Any]:
        said = self.answers.pop(number)
        return said.get("ok", said)  # type: ignore[no-any-return]

    def take(self, *gpus: int, knobs: tuple[str, ...] = (LIMIT,), ttl_s: float = 30.0, **fields: Any) -> dict[str, Any]:
        uuids = [self.house.uuids[index] for index in gpus or (0,)]
        return self.ask("take", gpus=uuids, knobs=list(knobs), ttl_s=ttl_s, **fields)

    def hold(self, *gpus: int, **fields: Any) -> str:
        taken = self.take(*gpus, **fields)
        assert "lease" in taken, taken
        return str(taken["lease"])

    def apply(self, lease: str, **setting: float) -> dict[str, Any]:
        return self.ask("apply", lease=lease, setting=setting)


class House:
    """Three virtual GPUs, files in a folder, and the service that looks after them."""

    def __init__(self, folder: Path, policy: Policy) -> None:
        self.time = VirtualTime(1000.0)
        self.folder = folder
        self.policy = policy
        self.gpus = [VirtualGpu(catalog.load("h200"), time=self.time, index=index) for index in range(3)]
        self.controls = [VirtualControls(gpu) for gpu in self.gpus]
        self.uuids = [gpu.info.uuid for gpu in self.gpus]
        self.audit = Audit(folder / "log" / "audit.jsonl")
        self._born_unix_s = clock.time()
        self.grants = Grants(folder / "grants", now=self.unix_s)
        self.saved: list[Saved] = []
        self.seen: dict[str, Seen] = {}
        self.glimpse: Callable[[str], Seen | None] = lambda uuid: None
        self.start()

    def unix_s(self) -> float:
        return self._born_unix_s + self.time.now_s() - 1000.0

    def start(self) -> None:
        self.executor = Inline()
        stations = [_LookedAt(self, controls, index) for index, controls in enumerate(self.controls)]
        self.service = Service(
            stations, policy=self.policy, grants=self.grants, audit=self.audit, time=self.time, unix=self.unix_s
        )
        self.service.start()
        self.executor.deliver()

    def die(self) -> None:
        """As by SIGKILL: nothing but the files is left."""
        for saved in self.saved:
            saved.close()
        self.saved.clear()

    def open_keeper(self, controls: Controls) -> Keeper:
        self.saved.append(Saved.open(self.folder / "state", controls.uuid))
        return Keeper(controls, self.saved[-1], baseline=self.policy.baseline(controls.uuid))

    def pass_s(self, duration_s: float, step_s: float = 0.25) -> None:
        """Let time pass as the server would."""
        end_s = self.time.now_s() + duration_s
        while self.time.now_s() < end_s:
            self.time.sleep(min(step_s, end_s - self.time.now_s()))
            self.service.tick()
            self.executor.deliver()

    def limits_w(self) -> list[float]:
        return [gpu.asked_limit_w for gpu in self.gpus]

    def ceiling_mhz(self, index: int = 0) -> float | None:
        return self.controls[index].asked().get(SM)

    def audited(self, **fields: Any) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.audit.path.read_text("utf-8").splitlines()]
        return [line for line in lines if all(line.get(name) == value for name, value in fields.items())]


class _LookedAt(Station):
    """A station whose GPU shows the processes that the test puts there."""

    def __init__(self, house: House, controls: Controls, index: int) -> None:
        super().__init__(controls, house.open_keeper, house.executor, house.time.now_s, index=index)
        self._house = house

    def look_who(self, _: Controls) -> Seen:
        return self._house.glimpse(self.uuid) or self._house.seen.get(self.uuid, Seen((), False))


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[Policy], House]]:
    made: list[House] = []

    def build(policy: Policy) -> House:
        made.append(House(tmp_path / str(len(made)), policy))
        return made[-1]

    yield build
    for house in made:
        house.die()
        house.audit.close()


@pytest.fixture
def house(make: Callable[[Policy], House]) -> House:
    return make(EVERYONE)


# -- leases


def test_a_lease_is_durable_before_it_is_answered(house: House):
    root = Person(house)
    number = root.begin("take", gpus=house.uuids[:1], knobs=[LIMIT], ttl_s=30)
    assert number not in root.answers
    assert Saved.known(house.folder / "state") == ()
    house.executor.deliver()
    assert "lease" in root.answer(number)
    assert Saved.known(house.folder / "state") == (house.uuids[0],)


def test_a_lease_sets_and_gives_back(house: House):
    root = Person(house)
    lease = root.hold(0, 1, knobs=(LIMIT, SM))
    applied = root.apply(lease, power_limit_w=400, sm_mhz=1201)
    assert applied["effective"] == {uuid: {LIMIT: 400.0, SM: 1200.0} for uuid in house.uuids[:2]}
    assert house.limits_w() == [400, 400, 700]
    assert house.ceiling_mhz() == 1200
    released = root.ask("release", lease=lease)
    assert {(each["knob"], each["ending"]) for each in released["restored"]} == {(LIMIT, "restored"), (SM, "reset")}
    assert house.limits_w() == [700, 700, 700]
    assert house.ceiling_mhz() is None
    assert root.ask("leases")["leases"] == []


def test_a_ttl_is_capped_by_the_site(house: House):
    assert Person(house).take(ttl_s=1e6)["ttl_s"] == 100.0


def test_a_lease_that_is_not_renewed_ends_and_one_that_is_does_not(house: House):
    silent, lively = Person(house), Person(house)
    one, other = silent.hold(0, ttl_s=10), lively.hold(1, ttl_s=10)
    silent.apply(one, power_limit_w=400)
    lively.apply(other, power_limit_w=400)
    for _ in range(5):
        house.pass_s(5)
        assert "ttl_s" in lively.ask("beat", lease=other)
    assert house.limits_w() == [700, 400, 700]
    assert silent.apply(one, power_limit_w=300)["error"] == "LeaseLost"
    assert [event["event"] for event in silent.events] == ["ended"]
    assert "10 s" in silent.events[0]["says"]
    assert house.limits_w() == [700, 400, 700]


def test_an_apply_counts_as_a_sign_of_life(house: House):
    root = Person(house)
    lease = root.hold(ttl_s=10)
    for value in (400, 410, 420):
        house.pass_s(8)
        assert "effective" in root.apply(lease, power_limit_w=value)


def test_a_client_that_goes_loses_everything_it_holds(house: House):
    alice, bob = Person(house, ALICE), Person(house, BOB)
    for index in (0, 1):
        alice.apply(alice.hold(index), power_limit_w=400)
    bob.apply(bob.hold(2), power_limit_w=500)
    house.service.gone(alice, "its owner has died")
    house.executor.deliver()
    assert house.limits_w() == [700, 700, 500]
    assert len(house.audited(op="restore", uid=ALICE, why="its owner has died")) == 2


def test_a_client_that_goes_while_its_lease_is_being_taken_holds_nothing(house: House):
    alice = Person(house, ALICE)
    alice.begin("take", gpus=house.uuids, knobs=[LIMIT, SM], ttl_s=30)
    house.service.gone(alice, "died")
    house.executor.deliver()
    assert Person(house).take(0, 1, 2, knobs=(LIMIT, SM))["lease"]


def test_a_client_that_goes_while_its_apply_is_under_way_leaves_nothing_set(house: House):
    alice = Person(house, ALICE)
    lease = alice.hold(0, 1)
    alice.begin("apply", lease=lease, setting={LIMIT: 400})
    house.service.gone(alice, "died")
    house.executor.deliver()
    assert house.limits_w() == [700, 700, 700]


def test_acts_of_one_lease_are_done_in_their_order(house: House):
    root = Person(house)
    lease = root.hold(0, 1)
    numbers = [root.begin("apply", lease=lease, setting={LIMIT: value}) for value in (400, 300, 500)]
    numbers.append(root.begin("release", lease=lease))
    numbers.append(root.begin("apply", lease=lease, setting={LIMIT: 300}))
    house.executor.deliver()
    said = [root.answer(number) for number in numbers]
    assert [next(iter(each["effective"].values()))[LIMIT] for each in said[:3]] == [400, 300, 500]
    assert said[3]["restored"][0]["wrote"] == 500
    assert said[4]["error"] == "LeaseLost"
    assert house.limits_w() == [700, 700, 700]


def test_somebody_elses_lease_cannot_be_used(house: House):
    alice, bob = Person(house, ALICE), Person(house, BOB)
    lease = alice.hold()
    for op, fields in (("apply", {"setting": {}}), ("beat", {}), ("release", {})):
        said = bob.ask(op, lease=lease, **fields)
        assert said["error"] == "NotPermitted"
        assert str(ALICE) in said["message"]
    assert "effective" in alice.apply(lease, power_limit_w=500)


def test_a_lease_that_never_was_is_lost(house: House):
    assert Person(house).apply("lease-1", power_limit_w=400)["error"] == "LeaseLost"


def test_knobs_of_one_gpu_can_be_held_by_two_and_a_conflict_tells_by_whom(house: House):
    alice, bob = Person(house, ALICE), Person(house, BOB)
    alice.hold(knobs=(SM,), reason="sweep")
    assert "lease" in bob.take(knobs=(LIMIT,))
    said = bob.take(0, 1, knobs=(SM,))
    assert said["error"] == "LeaseTaken"
    for part in ("uid 1000", "sweep", "30.0 s"):
        assert part in said["message"]
    assert "lease" in bob.take(1, knobs=(SM,))


@pytest.mark.parametrize(
    ("setting", "error"),
    [
        ({LIMIT: 100}, "OutOfRange"),
        ({LIMIT: 701}, "OutOfRange"),
        ({LIMIT: 349}, "OutOfRange"),  # the site allows from half of the default on
        ({SM: 1200}, "NotPermitted"),  # not in the lease
    ],
)
def test_what_may_not_be_set_changes_nothing(house: House, setting: dict[str, float], error: str):
    alice = Person(house, ALICE)
    lease = alice.hold(0, 1)
    alice.apply(lease, power_limit_w=500)
    assert alice.apply(lease, **setting)["error"] == error
    assert house.limits_w() == [500, 500, 700]
    assert house.ceiling_mhz() is None


def test_a_gpu_that_is_not_in_the_lease_cannot_be_set_through_it(house: House):
    root = Person(house)
    lease = root.hold(0)
    assert root.ask("apply", lease=lease, setting={LIMIT: 400}, gpus=house.uuids[1:2])["error"] == "NoGpu"
    assert house.limits_w() == [700, 700, 700]


def test_where_one_gpu_fails_the_others_go_back_to_what_the_lease_had_there(house: House):
    root = Person(house)
    lease = root.hold(0, 1, 2)
    root.apply(lease, power_limit_w=500)
    house.gpus[1].fault(lost=True)
    assert root.apply(lease, power_limit_w=400)["error"] == "GpuLost"
    assert house.limits_w()[::2] == [500, 500]
    house.gpus[1].fault(lost=False)
    assert "effective" in root.apply(lease, power_limit_w=450)


def test_a_lease_that_cannot_be_taken_on_all_gpus_holds_none(house: House):
    root = Person(house)
    house.gpus[1].fault(lost=True)
    assert root.take(0, 1, 2)["error"] == "GpuLost"
    assert "lease" in Person(house).take(0, 2)


def test_what_could_not_be_given_back_is_tried_again_and_blocks_others_meanwhile(house: House):
    root, other = Person(house), Person(house)
    lease = root.hold(0, 1)
    root.apply(lease, power_limit_w=400)
    house.gpus[0].fault(lost=True)
    released = root.ask("release", lease=lease)
    assert [each["ending"] for each in released["restored"]] == ["failed", "restored"]
    assert "being restored" in other.take(0)["message"]
    assert "lease" in other.take(1)
    house.pass_s(60)
    assert len(house.audited(op="restore", gpu=house.uuids[0])) == 1  # the same failure again is no news
    house.gpus[0].fault(lost=False)
    house.pass_s(6)
    assert house.limits_w()[0] == 700
    assert "lease" in other.take(0)


def test_release_may_be_asked_for_again_while_it_is_under_way(house: House):
    root = Person(house)
    lease = root.hold()
    numbers = [root.begin("release", lease=lease) for _ in range(3)]
    house.executor.deliver()
    assert all(len(root.answer(number)["restored"]) == 1 for number in numbers)


# -- parties


def test_a_party_may_act_only_when_all_have_joined(house: House):
    ranks = [Person(house, ALICE) for _ in range(3)]
    together = {"name": "job", "size": 3}
    leases = [ranks[0].hold(0, together=together), ranks[1].hold(1, together=together)]
    assert ranks[0].apply(leases[0], power_limit_w=400)["error"] == "NotNow"
    leases.append(ranks[2].hold(2, together=together))
    for rank, lease in zip(ranks, leases, strict=True):
        assert "effective" in rank.apply(lease, power_limit_w=400)
    house.service.gone(ranks[1], "died")
    house.executor.deliver()
    assert house.limits_w() == [700, 700, 700]
    assert "job" in ranks[0].events[0]["says"]


def test_a_party_of_which_one_is_refused_ends_at_once_and_for_all(house: House):
    alice, other = Person(house, ALICE), Person(house, BOB)
    together = {"name": "job", "size": 3}
    other.hold(1)
    lease = alice.hold(0, together=together)
    assert Person(house, ALICE).take(1, together=together)["error"] == "LeaseTaken"
    house.executor.deliver()
    assert alice.ask("beat", lease=lease)["error"] == "LeaseLost"
    late = Person(house, ALICE).take(2, together=together)
    assert late["error"] == "LeaseLost"
    house.pass_s(31)
    assert "lease" in alice.take(0, together=together)


def test_a_party_that_does_not_come_together_ends(house: House):
    alice = Person(house, ALICE)
    lease = alice.hold(0, together={"name": "job", "size": 2}, ttl_s=100)
    house.pass_s(29)
    assert "ttl_s" in alice.ask("beat", lease=lease)
    house.pass_s(2)
    assert alice.ask("beat", lease=lease)["error"] == "LeaseLost"
    assert "1 of 2" in alice.events[0]["says"]


def test_parties_of_two_users_may_have_one_name(house: House):
    for uid, index in ((ALICE, 0), (BOB, 1)):
        assert "lease" in Person(house, uid).take(index, together={"name": "job", "size": 2})


def test_who_does_not_fit_into_a_party_does_it_no_harm(house: House):
    alice = Person(house, ALICE)
    lease = alice.hold(0, together={"name": "job", "size": 1})
    assert alice.take(1, together={"name": "job", "size": 1})["error"] == "LeaseTaken"
    assert alice.take(1, together={"name": "job", "size": 2})["error"] == "OutOfRange"
    assert "effective" in alice.apply(lease, power_limit_w=400)


# -- rights


def test_a_right_by_process_is_looked_at_when_it_is_asked_for_and_again_later(make: Callable[[Policy], House]):
    house = make(Policy(pace=PaceLimits(1e6, 1e6)))
    alice = Person(house, ALICE)
    said = alice.take()
    assert said["error"] == "NotPermitted"
    assert "joulewise grant add" in said["message"]
    house.seen[house.uuids[0]] = Seen(((7, ALICE),), False)
    lease = alice.hold()
    alice.apply(lease, power_limit_w=400)
    house.pass_s(LOOK_AGAIN_S + 2)
    assert "ttl_s" in alice.ask("beat", lease=lease)
    house.seen[house.uuids[0]] = Seen(((7, ALICE), (8, BOB)), False)
    house.pass_s(LOOK_AGAIN_S + 2)
    assert alice.ask("beat", lease=lease)["error"] == "LeaseLost"
    assert "shared" in alice.events[0]["says"]
    assert house.limits_w() == [700, 700, 700]


def test_a_lease_ends_with_the_grant_it_rests_on(make: Callable[[Policy], House]):
    house = make(Policy(rules=(), pace=PaceLimits(1e6, 1e6)))
    alice = Person(house, ALICE)
    for index, (name, lasts_s) in enumerate((("brief", 20.0), ("removed", 1000.0))):
        grant = Grant(name, ALICE, (house.uuids[index],), None, None, house.unix_s() + lasts_s)
        add(house.folder / "grants", grant)
        alice.apply(alice.hold(index, ttl_s=200), power_limit_w=400)
    house.pass_s(18)
    assert house.limits_w() == [400, 400, 700]
    house.pass_s(4)
    assert house.limits_w() == [700, 400, 700]
    remove(house.folder / "grants", name="removed")
    house.pass_s(2)
    assert house.limits_w() == [700, 700, 700]
    assert alice.take(0)["error"] == "NotPermitted"


def test_a_client_that_goes_while_its_processes_are_looked_at_gets_no_lease(make: Callable[[Policy], House]):
    house = make(Policy(pace=PaceLimits(1e6, 1e6)))
    house.seen[house.uuids[0]] = Seen(((7, ALICE),), False)
    alice = Person(house, ALICE)
    alice.begin("take", gpus=house.uuids[:1], knobs=[LIMIT], ttl_s=30)
    house.service.gone(alice, "died")
    house.executor.deliver()
    assert Person(house).ask("leases")["leases"] == []


def test_other_rules_end_the_leases_that_they_do_not_allow(house: House):
    alice, root = Person(house, ALICE), Person(house)
    alice.apply(alice.hold(0), power_limit_w=400)
    root.apply(root.hold(1), power_limit_w=400)
    house.service.set_policy(Policy(rules=()))
    house.executor.deliver()
    assert house.limits_w() == [700, 400, 700]


def test_root_alone_may_do_what_is_for_administrators(house: House):
    alice = Person(house, ALICE)
    lease = alice.hold()
    for op, fields in (
        ("status", {}),
        ("end", {"lease": lease}),
        ("stand", {"gpus": house.uuids[:1], "setting": {SM: 1200}}),
    ):
        assert alice.ask(op, **fields)["error"] == "NotPermitted"
    assert house.ceiling_mhz() is None
    assert "ttl_s" in alice.ask("beat", lease=lease)


def test_a_standing_lock_is_where_clocks_go_back_to(house: House):
    root = Person(house)
    assert root.ask("stand", gpus=house.uuids[:1], setting={SM: 1500}) == {}
    assert house.ceiling_mhz() == 1500
    lease = root.hold(knobs=(SM,))
    root.apply(lease, sm_mhz=900)
    assert root.ask("release", lease=lease)["restored"][0]["ending"] == "standing"
    assert house.ceiling_mhz() == 1500
    assert root.ask("stand", gpus=house.uuids[:1], setting={SM: None}) == {}
    assert house.ceiling_mhz() is None


def test_too_many_writes_are_not_now_and_say_when(make: Callable[[Policy], House]):
    house = make(Policy(rules=(Rule(needs="nothing"),), pace=PaceLimits(2.0, 3.0)))
    alice, bob = Person(house, ALICE), Person(house, BOB)
    lease = alice.hold()
    assert [("error" in alice.apply(lease, power_limit_w=400 + n)) for n in range(3)] == [False, False, True]
    said = alice.apply(lease, power_limit_w=450)
    assert (said["error"], said["retry_s"]) == ("NotNow", 0.5)
    assert "lease" in bob.take(1)
    house.pass_s(0.5)
    assert "effective" in alice.apply(lease, power_limit_w=450)


# -- quiet


def test_quiet_stops_everybodys_writes_and_no_restore(house: House):
    alice, bob = Person(house, ALICE), Person(house, BOB)
    limit, clock = alice.hold(knobs=(LIMIT,)), bob.hold(knobs=(SM,))
    alice.apply(limit, power_limit_w=400)
    assert bob.ask("quiet", gpus=house.uuids[:1], for_s=20, reason="capture") == {}
    said = alice.apply(limit, power_limit_w=500)
    assert (said["error"], said["retry_s"]) == ("NotNow", 20)
    assert "capture" in said["message"]
    assert "restored" in alice.ask("release", lease=limit)
    assert house.limits_w()[0] == 700
    house.pass_s(21)
    assert "effective" in bob.apply(clock, sm_mhz=900)


def test_quiet_ends_with_who_asked_for_it(house: House):
    alice, bob = Person(house, ALICE), Person(house, BOB)
    lease = alice.hold()
    bob.ask("quiet", gpus=house.uuids[:1], for_s=500)
    assert alice.apply(lease, power_limit_w=400)["error"] == "NotNow"
    house.service.gone(bob, "died")
    assert "effective" in alice.apply(lease, power_limit_w=400)


def test_who_may_set_nothing_on_a_gpu_may_not_keep_others_from_it(make: Callable[[Policy], House]):
    house = make(Policy(rules=(), pace=PaceLimits(1e6, 1e6)))
    root = Person(house)
    lease = root.hold()
    assert Person(house, ALICE).ask("quiet", gpus=house.uuids[:1], for_s=500)["error"] == "NotPermitted"
    assert "effective" in root.apply(lease, power_limit_w=400)


# -- what happens without anybody's doing


def test_somebody_elses_limit_is_told_and_stays(house: House):
    root = Person(house)
    lease = root.hold()
    root.apply(lease, power_limit_w=400)
    house.controls[0].write(LIMIT, 333.0)
    house.pass_s(2)
    (event,) = root.events
    assert (event["event"], event["found"], event["wrote"]) == ("foreign", 333.0, 400.0)
    assert root.ask("release", lease=lease)["restored"][0]["ending"] == "foreign"
    assert house.limits_w()[0] == 333


def test_a_reload_of_the_driver_ends_the_lease_with_a_notice(house: House):
    root = Person(house)
    house.pass_s(100)  # so that the counter has something to lose
    lease = root.hold()
    root.apply(lease, power_limit_w=400)
    house.pass_s(2)
    house.gpus[0].reload_driver()
    house.pass_s(3)
    assert [event["event"] for event in root.events] == ["reload", "ended"]
    assert root.ask("beat", lease=lease)["error"] == "LeaseLost"
    assert house.limits_w()[0] == 700
    assert "lease" in root.take()


def test_a_reload_before_a_lease_was_taken_does_not_end_it(house: House):
    root = Person(house)
    house.pass_s(100)
    clock, brief = root.hold(knobs=(SM,)), root.hold(ttl_s=0.3)
    house.gpus[0].reload_driver()
    root.ask("release", lease=clock)  # which finds out, and nobody looks before the other one has expired
    house.time.sleep(0.4)
    house.service.tick()
    house.executor.deliver()
    assert root.ask("beat", lease=brief)["error"] == "LeaseLost"
    lease = root.hold()
    house.pass_s(3)
    assert "ttl_s" in root.ask("beat", lease=lease)


# -- drivers that hang


def test_a_hung_driver_stalls_its_own_gpu_only(house: House):
    root = Person(house)
    house.executor.hold(house.uuids[0])
    number = root.begin("read", gpu=house.uuids[0])
    assert "power_limit_w" in root.ask("read", gpu=house.uuids[1])
    house.pass_s(LATE_S + 1)
    assert root.answer(number)["error"] == "GpuStalled"
    assert root.ask("read", gpu=house.uuids[0])["error"] == "GpuStalled"
    assert root.take(0, 1)["error"] == "GpuStalled"
    assert root.ask("status")["health"] == dict(zip(house.uuids, ("stalled", "ok", "ok"), strict=True))
    assert "lease" in root.take(1)
    house.executor.let_go(house.uuids[0])
    house.pass_s(1)
    assert "power_limit_w" in root.ask("read", gpu=house.uuids[0])


def test_what_a_late_take_did_is_undone(house: House):
    root = Person(house)
    house.executor.hold(house.uuids[1])
    number = root.begin("take", gpus=house.uuids, knobs=[LIMIT], ttl_s=30)
    house.pass_s(LATE_S + 1)
    assert root.answer(number)["error"] == "GpuStalled"
    assert "lease" in root.take(0, 2)
    assert "being restored" in root.take(1)["message"]
    house.executor.let_go(house.uuids[1])
    house.pass_s(1)
    assert "lease" in root.take(1)


def test_what_a_late_apply_did_is_undone_on_every_gpu(house: House):
    root = Person(house)
    lease = root.hold(0, 1)
    root.apply(lease, power_limit_w=500)
    house.executor.hold(house.uuids[1])
    number = root.begin("apply", lease=lease, setting={LIMIT: 400})
    house.executor.deliver()
    assert house.limits_w()[:2] == [400, 500]
    house.pass_s(LATE_S + 1)
    assert root.answer(number)["error"] == "GpuStalled"
    assert house.limits_w()[:2] == [500, 500]
    house.executor.let_go(house.uuids[1])
    house.pass_s(1)
    assert house.limits_w()[:2] == [500, 500]
    assert "effective" in root.apply(lease, power_limit_w=450)


def test_a_restore_that_hangs_is_done_when_the_driver_comes_back(house: House):
    root = Person(house)
    lease = root.hold(0, 1)
    root.apply(lease, power_limit_w=400)
    house.executor.hold(house.uuids[0])
    number = root.begin("release", lease=lease)
    house.executor.deliver()
    assert house.limits_w()[:2] == [400, 700]
    house.pass_s(LATE_S + 1)
    assert [each["ending"] for each in root.answer(number)["restored"]] == ["failed", "restored"]
    house.executor.let_go(house.uuids[0])
    house.pass_s(1)
    assert house.limits_w()[:2] == [700, 700]
    assert root.ask("leases")["leases"] == []


def test_many_reads_of_one_gpu_share_one_call(house: House):
    people = [Person(house) for _ in range(50)]
    numbers = [person.begin("read", gpu=house.uuids[0]) for person in people]
    assert house.executor.deliver() == 1
    said = [person.answer(number) for person, number in zip(people, numbers, strict=True)]
    assert len({each["time_s"] for each in said}) == 1


# -- the daemon's own life


def test_a_daemon_that_dies_leaves_all_to_the_next(house: House):
    root = Person(house)
    house.controls[1].write(LIMIT, 650.0)
    root.apply(root.hold(0, 1, knobs=(LIMIT, SM)), power_limit_w=400, sm_mhz=900)
    house.die()
    house.start()
    assert house.limits_w() == [700, 650, 700]
    assert house.ceiling_mhz() is None
    assert len(house.audited(op="replay", result="restored")) == 2
    assert "lease" in Person(house).take(0, 1)


def test_what_the_next_daemon_cannot_give_back_at_once_it_tries_again(house: House):
    root = Person(house)
    root.apply(root.hold(0), power_limit_w=400)
    house.die()
    house.gpus[0].fault(lost=True)
    house.start()
    assert Person(house).take(0)["error"] in ("LeaseTaken", "GpuLost")
    house.gpus[0].fault(lost=False)
    house.pass_s(6)
    assert house.limits_w() == [700, 700, 700]
    assert "lease" in Person(house).take(0)


def test_a_stop_gives_everything_back_and_takes_nothing_more(house: House):
    root = Person(house)
    root.apply(root.hold(0, 1), power_limit_w=400)
    house.service.stop()
    assert not house.service.idle
    assert root.take(2)["error"] == "NotNow"
    house.executor.deliver()
    assert house.limits_w() == [700, 700, 700]
    assert house.service.idle
    assert house.service.restored


def test_a_gpu_that_hangs_unleased_does_not_hold_up_a_stop(house: House):
    house.executor.hold(house.uuids[0])
    Person(house).begin("read", gpu=house.uuids[0])
    house.service.stop()
    assert not house.service.idle
    house.pass_s(LATE_S + 1)
    assert house.service.idle


def test_without_an_audit_log_nothing_is_set_but_all_is_given_back(house: House):
    root = Person(house)
    lease = root.hold()
    root.apply(lease, power_limit_w=400)
    log = house.audit.path
    house.audit.close()
    log.unlink()
    log.mkdir()
    root.apply(lease, power_limit_w=300)  # of which the log then tells that it lacks a line
    said = root.apply(lease, power_limit_w=350)
    assert said["error"] == "NotSaved"
    assert "audit" in said["message"]
    assert root.take(1)["error"] == "NotSaved"
    assert root.ask("release", lease=lease)["restored"][0]["ending"] == "restored"
    assert house.limits_w() == [700, 700, 700]
    log.rmdir()
    assert "lease" in root.take(1)


def test_where_nothing_can_be_saved_nothing_is_set_but_everything_can_be_read(house: House):
    house.die()
    state = house.folder / "state"
    for path in state.iterdir():
        path.unlink()
    state.rmdir()
    state.write_text("no folder")
    house.start()
    root = Person(house)
    assert root.take()["error"] == "NotSaved"
    assert "power_limit_w" in root.ask("read", gpu=house.uuids[0])
    assert root.ask("gpus")["gpus"][0]["health"] == "unsafe"
    state.unlink()
    assert "lease" in root.take()


def test_every_act_is_written_down(house: House):
    alice = Person(house, ALICE)
    lease = alice.hold(reason="sweep")
    alice.apply(lease, power_limit_w=500)
    alice.apply(lease, power_limit_w=100)
    Person(house, BOB).take()
    alice.ask("release", lease=lease)
    for fields in (
        {"op": "take", "result": "ok", "why": "sweep"},
        {"op": "apply", "gpu": house.uuids[0], "knob": LIMIT, "after": 500.0, "result": "ok"},
        {"op": "restore", "before": 500.0, "after": 700.0, "result": "restored", "why": "released"},
    ):
        (line,) = house.audited(uid=ALICE, pid=alice.pid, command="python", lease=lease, **fields)
        assert "time" in line
    assert [line["result"][:10] for line in house.audited(op="apply", lease=lease)] == ["ok", "OutOfRange"]
    assert house.audited(uid=BOB)[0]["result"].startswith("LeaseTaken")


def test_a_request_that_cannot_be_understood_is_answered_with_its_id(house: House):
    root = Person(house)
    assert root.ask("shutdown")["error"] == "BadMessage"
    assert root.ask("take", gpus=house.uuids, knobs=["fan"], ttl_s=1)["error"] == "Unsupported"
    assert root.pending == 0


def test_settings_snap_and_unknown_gpus_are_none(house: House):
    root = Person(house)
    assert root.ask("read", gpu="GPU-x")["error"] == "NoGpu"
    assert root.ask("take", gpus=["GPU-x"], knobs=[SM], ttl_s=1)["error"] == "NoGpu"
    assert root.ask("quiet", gpus=["GPU-x"], for_s=1)["error"] == "NoGpu"
    lease = root.hold(knobs=(SM,))
    assert root.apply(lease, sm_mhz=1207)["effective"][house.uuids[0]] == dict(Setting(sm_mhz=1200))


# -- what was owed before we came


def test_what_cannot_be_given_back_at_the_start_is_listed_and_counted_until_it_is(house: House):
    alice = Person(house, ALICE)
    lease = alice.hold(0, 1, reason="sweep")
    alice.apply(lease, power_limit_w=400)
    house.die()
    for gpu in house.gpus[:2]:
        gpu.fault(lost=True)
    house.start()
    root = Person(house)
    (owed,) = root.ask("leases")["leases"]
    assert (owed["lease"], owed["stage"], owed["uid"], owed["reason"]) == (lease, "owed", ALICE, "sweep")
    assert (owed["gpus"], owed["knobs"]) == (house.uuids[:2], [LIMIT])
    assert owed["settings"] == {uuid: {LIMIT: 400.0} for uuid in house.uuids[:2]}
    assert root.ask("status")["owed"] == 2
    assert not house.service.restored
    house.pass_s(60)
    assert len(house.audited(op="replay")) == 2  # the same failure again is no news
    assert [each["ending"] for each in root.ask("end", lease=lease)["restored"]] == ["failed", "failed"]
    house.gpus[0].fault(lost=False)
    assert [each["ending"] for each in root.ask("end", lease=lease)["restored"]] == ["restored", "failed"]
    house.gpus[1].fault(lost=False)
    house.pass_s(6)
    assert root.ask("leases")["leases"] == []
    assert root.ask("status")["owed"] == 0
    assert house.service.restored
    assert house.limits_w() == [700, 700, 700]


def test_a_stop_with_something_owed_tries_once_more_and_does_not_say_that_all_is_back(house: House):
    root = Person(house)
    root.apply(root.hold(), power_limit_w=400)
    house.die()
    house.gpus[0].fault(lost=True)
    house.start()
    house.service.stop()
    house.executor.deliver()
    assert (house.service.idle, house.service.restored) == (True, False)
    house.gpus[0].fault(lost=False)
    house.service.stop()
    house.executor.deliver()
    assert (house.service.idle, house.service.restored) == (True, True)
    assert house.limits_w() == [700, 700, 700]


def test_what_is_owed_on_a_gpu_that_is_not_there_is_listed(house: House):
    house.service.owe("GPU-away", [], "the GPU has not answered yet")
    root = Person(house)
    (owed,) = root.ask("leases")["leases"]
    assert (owed["gpus"], owed["stage"], owed["why"]) == (["GPU-away"], "owed", "the GPU has not answered yet")
    assert root.ask("status")["owed"] == 1
    assert not house.service.restored


def test_a_restore_that_is_tried_again_leaves_the_next_owner_alone(house: House):
    alice, bob = Person(house, ALICE), Person(house, BOB)
    house.die()
    local = Saved.open(house.folder / "state", house.uuids[0])  # a process of root's own has the first GPU
    house.start()
    house.executor.hold(house.uuids[1])
    alice.begin("take", gpus=house.uuids[:2], knobs=[LIMIT], ttl_s=30)
    house.executor.deliver()
    house.service.gone(alice, "died")  # while the first GPU has refused and the second has not answered
    house.executor.deliver()
    local.close()
    house.executor.let_go(house.uuids[1])
    house.executor.deliver()
    lease = bob.hold(0)
    bob.apply(lease, power_limit_w=400)
    house.pass_s(12)
    assert house.limits_w()[0] == 400
    assert "effective" in bob.apply(lease, power_limit_w=410)
    assert bob.ask("release", lease=lease)["restored"][0]["ending"] == "restored"


# -- applies that fail


class _Fragile:
    """Controls of a GPU that is lost in the midst of writing a limit: it is written, and nothing can be read again."""

    def __init__(self, gpu: VirtualGpu) -> None:
        self.breaks = False
        self._gpu = gpu
        self._controls = VirtualControls(gpu)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._controls, name)

    def write(self, knob: str, value: float) -> None:
        self._controls.write(knob, value)
        if self.breaks and knob == LIMIT:
            self._gpu.fault(lost=True)
            raise GpuLost("it fell off the bus while the limit was written")


def test_an_apply_that_fails_and_cannot_go_back_ends_the_lease(house: House):
    house.die()
    fragile = house.controls[0] = _Fragile(house.gpus[0])  # type: ignore[call-overload]
    house.start()
    root = Person(house)
    lease = root.hold(0, 1, knobs=(LIMIT, SM))
    root.apply(lease, power_limit_w=500, sm_mhz=1500)
    fragile.breaks = True
    said = root.apply(lease, power_limit_w=400, sm_mhz=1200)
    assert (said["error"], "going back failed" in said["message"]) == ("GpuLost", True)
    assert root.ask("beat", lease=lease)["error"] == "LeaseLost"
    fragile.breaks = False
    house.gpus[0].fault(lost=False)
    house.pass_s(6)
    assert house.limits_w() == [700, 700, 700]
    assert house.ceiling_mhz() is None
    assert root.ask("leases")["leases"] == []


def test_an_apply_that_fails_and_goes_back_leaves_the_lease(house: House):
    root = Person(house)
    limits, clocks = root.hold(0, 1), root.hold(0, 1, knobs=(SM,))
    root.apply(limits, power_limit_w=500)
    root.apply(clocks, sm_mhz=1500)
    house.gpus[0].fault(lost=True)
    assert root.apply(limits, power_limit_w=400)["error"] == "GpuLost"
    assert root.apply(clocks, sm_mhz=1200)["error"] == "GpuLost"
    house.gpus[0].fault(lost=False)
    assert house.limits_w() == [500, 500, 700]
    assert (house.ceiling_mhz(0), house.ceiling_mhz(1)) == (1500, 1500)
    for lease in (limits, clocks):
        assert "ttl_s" in root.ask("beat", lease=lease)


def test_nothing_can_be_applied_before_the_lease_is_answered(house: House):
    root = Person(house)
    name = root.hold(1).rpartition("-")
    house.executor.hold(house.uuids[0])
    number = root.begin("take", gpus=house.uuids[:1], knobs=[LIMIT], ttl_s=30)
    guessed = f"{name[0]}-{int(name[2]) + 1}"
    assert root.apply(guessed, power_limit_w=400)["error"] == "NotNow"
    house.executor.let_go(house.uuids[0])
    house.executor.deliver()
    assert root.answer(number)["lease"] == guessed
    assert "effective" in root.apply(guessed, power_limit_w=400)


# -- rights that change


def test_a_rule_that_has_become_narrower_ends_the_lease_that_has_gone_farther(house: House):
    alice, bob = Person(house, ALICE), Person(house, BOB)
    near, far = alice.hold(0), bob.hold(1)
    alice.apply(near, power_limit_w=650)
    bob.apply(far, power_limit_w=500)
    narrow = Rule(needs="nothing", knobs={LIMIT: Range(low=Bound(600.0))})
    house.service.set_policy(Policy(rules=(narrow,), pace=PaceLimits(1e6, 1e6)))
    house.executor.deliver()
    assert house.limits_w() == [650, 700, 700]
    assert bob.ask("beat", lease=far)["error"] == "LeaseLost"
    assert "600" in bob.events[0]["says"]
    assert alice.apply(near, power_limit_w=599)["error"] == "OutOfRange"
    assert "effective" in alice.apply(near, power_limit_w=600)


def test_a_rule_that_becomes_narrower_while_an_apply_is_under_way_holds_for_it_too(house: House):
    alice = Person(house, ALICE)
    lease = alice.hold(0)
    number = alice.begin("apply", lease=lease, setting={LIMIT: 500})
    narrow = Rule(needs="nothing", knobs={LIMIT: Range(low=Bound(600.0))})
    house.service.set_policy(Policy(rules=(narrow,)))
    house.executor.deliver()
    assert "effective" in alice.answer(number)
    assert alice.ask("beat", lease=lease)["error"] == "LeaseLost"
    assert house.limits_w() == [700, 700, 700]


def test_the_end_of_a_grant_is_seen_when_it_comes_however_rarely_one_looks(make: Callable[[Policy], House]):
    house = make(Policy(rules=(), pace=PaceLimits(1e6, 1e6), poll_s=50.0, ttl_most_s=1000.0))
    alice = Person(house, ALICE)
    add(house.folder / "grants", Grant("brief", ALICE, (house.uuids[0],), None, None, house.unix_s() + 20.0))
    alice.apply(alice.hold(0, ttl_s=200), power_limit_w=400)
    house.pass_s(19)
    assert house.limits_w()[0] == 400
    house.pass_s(2)
    assert house.limits_w()[0] == 700


def test_somebody_who_is_seen_only_once_ends_nothing(make: Callable[[Policy], House]):
    house = make(Policy(pace=PaceLimits(1e6, 1e6)))
    gpu = house.uuids[0]
    house.seen[gpu] = Seen(((7, ALICE),), False)
    alice = Person(house, ALICE)
    lease = alice.hold()
    shown = iter([Seen(((7, ALICE), (8, -1)), False)])
    house.glimpse = lambda uuid: next(shown, None) if uuid == gpu else None
    house.pass_s(LOOK_AGAIN_S + 2)
    assert next(shown, None) is None
    assert "ttl_s" in alice.ask("beat", lease=lease)


def test_a_lease_tells_all_the_grants_it_rests_on(make: Callable[[Policy], House]):
    one_rule = Rule(users=frozenset({ALICE}), needs="nothing")
    house = make(Policy(rules=(one_rule,), pace=PaceLimits(1e6, 1e6)))
    alice = Person(house, ALICE)
    for index, name in ((1, "slurm-7"), (2, "slurm-8")):
        add(house.folder / "grants", Grant(name, ALICE, (house.uuids[index],), None, None, house.unix_s() + 600))
    alice.hold(0, 1, 2)
    (listed,) = alice.ask("leases")["leases"]
    assert listed["grants"] == ["slurm-7", "slurm-8"]
    assert listed["because"] == "rule 1 of the site, grant slurm-7, grant slurm-8"


def test_what_one_may_set_is_told_as_it_would_be_decided(make: Callable[[Policy], House]):
    rules = (
        Rule(users=frozenset({ALICE}), needs="nothing", knobs={LIMIT: Range(low=Bound(300.0)), "memory_mhz": None}),
    )
    house = make(Policy(rules=(*rules, Rule()), pace=PaceLimits(1e6, 1e6)))
    alice, bob, root = Person(house, ALICE), Person(house, BOB), Person(house)
    gpu = house.uuids[0]
    whole = {knob: [choices.low, choices.high] for knob, choices in house.controls[0].space.knobs.items()}
    assert root.ask("may", gpus=house.uuids)["may"] == {
        uuid: {"knobs": whole, "because": "root"} for uuid in house.uuids
    }
    assert alice.ask("may", gpus=[gpu])["may"][gpu] == {
        "knobs": {LIMIT: [300.0, 700.0]},
        "because": "rule 1 of the site",
    }
    assert "no process of yours" in bob.ask("may", gpus=[gpu])["may"][gpu]["why"]
    house.seen[gpu] = Seen(((7, BOB),), False)
    said = bob.ask("may", gpus=house.uuids[:2])["may"]
    assert (said[gpu]["knobs"][LIMIT], said[gpu]["because"]) == ([350.0, 700.0], "rule 2 of the site")
    assert "why" in said[house.uuids[1]]
    assert bob.ask("may", gpus=["GPU-x"])["error"] == "NoGpu"
    assert root.ask("leases")["leases"] == []
    house.executor.hold(gpu)
    root.begin("read", gpu=gpu)
    house.pass_s(LATE_S + 1)
    assert "more than 5 s" in bob.ask("may", gpus=[gpu])["may"][gpu]["why"]


# -- what stands


def test_only_clocks_can_stand(house: House):
    root = Person(house)
    said = root.ask("stand", gpus=house.uuids[:1], setting={SM: 1500, LIMIT: 500})
    assert said["error"] == "Unsupported"
    assert (house.ceiling_mhz(), house.limits_w()[0]) == (None, 700)
    assert root.ask("stand", gpus=house.uuids[:1], setting={SM: 1e6})["error"] == "OutOfRange"


def test_clocks_stand_on_all_gpus_or_on_none(house: House):
    root = Person(house)
    assert root.ask("stand", gpus=house.uuids[:1], setting={SM: 1800}) == {}
    house.gpus[1].fault(lost=True)
    said = root.ask("stand", gpus=house.uuids, setting={SM: 1500})
    assert said["error"] == "GpuLost"
    assert "could not be set again" not in said["message"]
    assert (house.ceiling_mhz(0), house.ceiling_mhz(2)) == (1800, None)
    assert house.audited(op="stand", result="ok", uid=0)[0]["after"] == {SM: 1800.0}
    assert house.audited(op="stand", uid=0)[1]["result"].startswith("GpuLost")
    house.gpus[1].fault(lost=False)
    house.executor.hold(house.uuids[1])
    number = root.begin("stand", gpus=house.uuids, setting={SM: 1500})
    house.pass_s(LATE_S + 1)
    assert root.answer(number)["error"] == "GpuStalled"
    house.executor.let_go(house.uuids[1])
    house.pass_s(1)
    assert [house.ceiling_mhz(index) for index in range(3)] == [1800, None, None]


# -- what a user can make the daemon keep


def test_parties_of_gpus_that_are_not_there_are_not_remembered(house: House):
    alice = Person(house, ALICE)
    for number in range(2 * MOST_PARTIES):
        said = alice.ask("take", gpus=["GPU-x"], knobs=[SM], ttl_s=5, together={"name": f"job-{number}", "size": 2})
        assert said["error"] == "NoGpu"
    assert len(house.service._lives) == 0
    Person(house).hold(0)
    refused = [alice.take(0, together={"name": f"job-{number}", "size": 2})["error"] for number in range(100)]
    assert refused == ["LeaseTaken"] * MOST_PARTIES + ["NotNow"] * (100 - MOST_PARTIES)
    assert "lease" in Person(house, BOB).take(1, together={"name": "job", "size": 2})
    house.pass_s(31)
    assert "lease" in alice.take(1, together={"name": "job", "size": 2})


def test_a_lease_that_was_released_is_not_kept_for_the_rest_of_its_time(house: House):
    root = Person(house)
    for _ in range(500):
        root.ask("release", lease=root.hold(ttl_s=100))
    assert len(house.service._lives) < 200
    gc.collect()
    assert sum(isinstance(each, Held) for each in gc.get_objects()) <= 1


# -- what is written down


def test_every_refusal_is_written_down_with_who_asked_and_for_what(house: House):
    alice, bob = Person(house, ALICE), Person(house, BOB)
    lease = alice.hold()
    asked: list[tuple[str, dict[str, Any]]] = [
        ("apply", {"lease": lease, "setting": {LIMIT: 650}}),
        ("release", {"lease": lease}),
        ("beat", {"lease": lease}),
        ("end", {"lease": lease}),
        ("stand", {"gpus": house.uuids[:1], "setting": {SM: 1500}}),
        ("status", {}),
        ("quiet", {"gpus": ["GPU-x"], "for_s": 5}),
        ("nonsense", {}),
    ]
    for op, fields in asked:
        assert "error" in bob.ask(op, **fields)
    written = house.audited(uid=BOB, pid=bob.pid)
    assert [line["op"] for line in written] == [*(op for op, _ in asked[:-1]), "message"]
    assert [line.get("lease") for line in written[:4]] == [lease] * 4
    assert written[0]["after"] == {LIMIT: 650.0}
    assert all(line["result"].partition(":")[0] in ("NotPermitted", "NoGpu", "BadMessage") for line in written)


def test_what_an_administrator_ends_and_who_asks_for_quiet_is_written_down(house: House):
    alice, root = Person(house, ALICE), Person(house)
    lease = alice.hold()
    alice.ask("quiet", gpus=house.uuids[:1], for_s=20, reason="capture")
    alice.ask("quiet", gpus=house.uuids[:1], for_s=0)
    alice.ask("quiet", gpus=house.uuids[:1], for_s=0)
    said = house.audited(op="quiet", uid=ALICE, result="ok")
    assert [(line["after"], line.get("why")) for line in said] == [(20.0, "capture"), (0.0, None)]
    root.ask("end", lease=lease, reason="maintenance")
    (line,) = house.audited(op="end", uid=0, pid=root.pid, lease=lease, result="ok")
    assert (line["gpu"], line["why"]) == (house.uuids[0], "maintenance")


def test_a_long_reason_is_written_once(house: House):
    alice = Person(house, ALICE)
    lease = alice.hold(0, reason="\U00020000" * 256, knobs=(LIMIT, SM))
    before = house.audit.path.stat().st_size
    for value in range(20):
        alice.apply(lease, power_limit_w=400 + value, sm_mhz=1200)
    lines = 21  # the limit each time, the clock the first time
    assert len(house.audited(op="apply", result="ok")) == lines
    assert (house.audit.path.stat().st_size - before) / lines < 300


def test_quiet_is_asked_for_no_oftener_than_writes(make: Callable[[Policy], House]):
    house = make(Policy(rules=(Rule(needs="nothing"),), pace=PaceLimits(1.0, 5.0)))
    alice = Person(house, ALICE)
    alice.hold()
    said = [alice.ask("quiet", gpus=house.uuids[:1], for_s=1) for _ in range(10)]
    assert [each.get("error") for each in said] == [None] * 4 + ["NotNow"] * 6
