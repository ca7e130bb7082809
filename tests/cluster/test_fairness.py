"""Fairness between users: whatever a user says of a job, nobody else has fewer GPUs for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulewise.cluster import fairness
from joulewise.cluster.allocators.fifo import fifo
from joulewise.cluster.allocators.priced import Terms, priced
from joulewise.cluster.belief import Fabric
from joulewise.cluster.brought import belief_of, plain_belief_of
from joulewise.cluster.engine import Order
from joulewise.cluster.fairness import Weights
from joulewise.cluster.nodes import NodePower
from joulewise.cluster.placement import Floor
from joulewise.cluster.progress import Progress
from joulewise.cluster.purse import Purse
from joulewise.cluster.round import Round
from joulewise.cluster.scheduler_track import Track, found
from joulewise.cluster.state import Allocation, Allocator, Job, Kind, Plain, Snapshot, Way, cluster_power_w
from joulewise.core.errors import BadSpec
from joulewise.core.knob import DEFAULT, Setting
from joulewise.model import catalog
from tests.cluster.toys import CLOCKS_MHZ, TOY, first_come, toy_ways
from tests.tiers import examples

OTHER = Kind("other", nodes=2, gpus_per_node=4, idle_gpu_w=30.0, host_w=500.0, off_w=10.0)
POLICIES: dict[str, Allocator] = {"priced": priced(), "fair": priced(Terms(fairness=1.0)), "fifo": fifo()}
SIZES = (1, 2, 3, 4, 6, 8, 16)
Held = dict[tuple[str, str], int]
"""(User, kind) → GPUs."""


@dataclass(frozen=True, repr=False)
class Case:
    """A cluster, jobs as nobody says anything of them, and what some users say of theirs."""

    kinds: tuple[Kind, ...]
    plain: tuple[Job, ...]
    said: tuple[Job, ...]
    places: Mapping[str, Way]
    policy: str
    power_w: float | None
    sleeps: bool
    keep_rigid: bool

    def __repr__(self) -> str:
        rows = [
            f"{job.name} of {job.user}: {job.gpus_asked}{' elastic' * job.elastic}, "
            f"on {None if job.way is None else (job.way.gpus, job.way.kind)}, says {said != job}"
            for job, said in zip(self.plain, self.said, strict=True)
        ]
        nodes = [(kind.name, kind.nodes) for kind in self.kinds]
        return f"{nodes} {self.policy} cap={self.power_w} sleeps={self.sleeps} rigid={self.keep_rigid} {rows}"

    def _repr_pretty_(self, printer: Any, cycle: object) -> None:
        """As hypothesis prints it: all ways would be pages."""
        printer.text(repr(self))

    def held(self, jobs: tuple[Job, ...]) -> Held:
        """What users have after one round that sees these jobs."""
        floors = {kind.name: Floor(kind) for kind in self.kinds}
        for name, way in self.places.items():
            assert floors[way.kind].place(name, way.gpus) is not None
        purse = None if self.power_w is None else Purse(power_w=self.power_w)
        round_ = Round(
            POLICIES[self.policy],
            nodes=NodePower(warm=1) if self.sleeps else None,
            purse=purse,
            keep_rigid=self.keep_rigid,
            calm=True,
        )
        round_.decide(Snapshot(5000.0, self.kinds, jobs), floors)
        held: Held = {}
        for job in jobs:
            for kind, floor in floors.items():
                gpus = sum(count for _, count in floor.place_of(job.name)) if job.name in floor.places else 0
                held[job.user, kind] = held.get((job.user, kind), 0) + gpus
        return held

    def lowered(self, users: set[str]) -> dict[tuple[str, str], tuple[int, int]]:
        """Where these users have less for what was said: before and after."""
        before, after = self.held(self.plain), self.held(self.said)
        return {key: (gpus, after[key]) for key, gpus in before.items() if key[0] in users and after[key] < gpus}


def plain_ways(gpus: int, kinds: tuple[Kind, ...], *, elastic: bool) -> tuple[Way, ...]:
    """What is thought of any job that asks for so many, on GPUs of each kind that can have it."""
    ways: list[Way] = []
    for kind in kinds:
        sizes = sorted({1, 2, 4, 8, 16, gpus}) if elastic else [gpus]
        there = [size for size in sizes if size <= kind.gpus_per_node or size % kind.gpus_per_node == 0]
        ways += toy_ways(tuple(size for size in there if size <= kind.gpus), kind=kind.name)
    return tuple(ways)


@st.composite
def brought(draw: st.DrawFn, kinds: tuple[Kind, ...], gpus: int, *, elastic: bool) -> tuple[Way, ...]:
    """Any points at all, wonders and nonsense among them."""
    ways = []
    for kind in draw(st.lists(st.sampled_from(kinds), min_size=1, unique=True)):
        fits = [size for size in SIZES if size <= kind.gpus and (size <= kind.gpus_per_node or size % 8 == 0)]
        sizes = draw(st.lists(st.sampled_from(fits), min_size=1, unique=True)) if elastic else [gpus]
        for size in sizes:
            for mhz in draw(st.lists(st.sampled_from(CLOCKS_MHZ), min_size=1, unique=True)):
                unit_s = draw(st.sampled_from([1e-9, 0.01, 0.3, 1.0, 50.0, 1e9]))
                watts = draw(st.sampled_from([1e-6, 60.0, 300.0, 1e9])) * size
                ways.append(Way(size, unit_s, unit_s * watts, Setting(sm_mhz=mhz), kind.name))
    return tuple(ways)


@st.composite
def cases(draw: st.DrawFn, speaking: tuple[str, ...]) -> Case:
    """Up to nine jobs of three users on one kind of node or two, some running; ``speaking`` users say things."""
    toy = replace(TOY, nodes=draw(st.integers(1, 3)))
    kinds = (toy, OTHER) if draw(st.booleans()) else (toy,)
    floors = {kind.name: Floor(kind) for kind in kinds}
    plain: list[Job] = []
    said: list[Job] = []
    places: dict[str, Way] = {}
    for number in range(draw(st.integers(2, 9))):
        name, user = f"job-{number}", draw(st.sampled_from(["a", "b", "c"]))
        gpus, elastic = draw(st.sampled_from([1, 2, 3, 4, 8])), draw(st.booleans())
        ways = plain_ways(gpus, kinds, elastic=elastic)
        way = ways[draw(st.integers(0, len(ways) - 1))] if draw(st.booleans()) else None
        if way is not None and floors[way.kind].place(name, way.gpus) is None:
            way = None
        if way is not None:
            places[name] = way
        bare = Plain(ways, draw(st.sampled_from([100.0, 3600.0, 1e5])), draw(st.sampled_from([1.0, 1.0, 2.0])))
        job = Job(
            name,
            submitted_s=100.0 * number,
            work_left=bare.work_left,
            ways=ways,
            gpus_asked=gpus,
            way=way,
            attained_gpu_s=0.0 if way is None else draw(st.sampled_from([0.0, 500.0, 1e5])),
            restarts=draw(st.integers(0, 2)),
            weight=bare.weight,
            elastic=elastic,
            user=user,
            plain=bare,
        )
        plain.append(job)
        if user in speaking and draw(st.booleans()):
            menu = draw(brought(kinds, gpus, elastic=elastic)) if draw(st.booleans()) else ways
            if way is not None:
                figures = replace(way, unit_s=draw(st.sampled_from([1e-9, 0.5, 1e9])), unit_j=draw(st.just(1e-6)))
                now = (way, figures, replace(figures, unit_j=figures.unit_s * 1e9))[draw(st.integers(0, 2))]
                menu = (*(each for each in menu if (each.gpus, each.setting) != (way.gpus, way.setting)), now)
                way = now
            job = replace(
                job,
                ways=menu,
                way=way,
                work_left=draw(st.sampled_from([1e-6, 1.0, 3600.0, 1e12])),
                weight=draw(st.sampled_from([1e-9, 0.1, 1.0, 1e6])),
                deadline_s=draw(st.sampled_from([None, 1.0, 5001.0, 6000.0, 1e9])),
                tenant=draw(st.sampled_from(["", "b"])),
            )
        said.append(job)
    whole_w = cluster_power_w(Snapshot(0.0, kinds, ()), Allocation({}))
    power_w = draw(st.none() | st.floats(whole_w + 1.0, whole_w + 12_000.0))
    if not (sleeps := draw(st.booleans())):
        awake_w = sum(kind.nodes * kind.empty_node_w for kind in kinds)
        power_w = None if power_w is None else power_w - whole_w + awake_w
    if sleeps and draw(st.booleans()):
        power_w = None
    return Case(
        kinds,
        tuple(plain),
        tuple(said),
        places,
        draw(st.sampled_from(sorted(POLICIES))),
        power_w,
        sleeps,
        draw(st.booleans()),
    )


@pytest.mark.sampled
@given(case=cases(("a",)))
@settings(max_examples=examples(400), deadline=None)
def test_nothing_that_one_user_says_lowers_the_gpus_of_any_other(case: Case) -> None:
    assert not case.lowered({"b", "c"})


@pytest.mark.sampled
@given(case=cases(("a", "b")))
@settings(max_examples=examples(400), deadline=None)
def test_nothing_that_several_users_say_lowers_the_gpus_of_one_who_says_nothing(case: Case) -> None:
    assert not case.lowered({"c"})


def test_a_user_whose_own_word_asks_for_less_leaves_the_rest_to_others_and_keeps_what_it_asked_for() -> None:
    kinds = (replace(TOY, nodes=1),)
    ways = plain_ways(3, kinds, elastic=True)
    bare = Plain(ways, 3600.0)
    plain = tuple(Job(name, 0.0, 3600.0, ways, 3, user=name, plain=bare) for name in ("silent", "greedy", "modest"))
    said = tuple(
        replace(job, deadline_s=6000.0)
        if job.user == "greedy"
        else replace(job, ways=tuple(way for way in ways if way.gpus == 1))
        if job.user == "modest"
        else job
        for job in plain
    )
    case = Case(kinds, plain, said, {}, "priced", None, False, True)
    before, after = case.held(plain), case.held(said)
    assert sum(after.values()) == sum(before.values()) == 8  # nothing idles for it
    assert before["modest", "toy"] > after["modest", "toy"] == 1
    assert after["silent", "toy"] >= before["silent", "toy"]


# Orders as users write them, believed as the scheduler believes them.

MODEL = catalog.load("a100-sxm")
NODE = replace(TOY, name="gpu", nodes=2)
FIELDS: dict[str, st.SearchStrategy[object]] = {
    "weight": st.sampled_from([1e-6, 0.5, 2.0, 1e6]),
    "deadline_s": st.floats(1.0, 1e6),
    "least_gpus": st.sampled_from([2, 4, 8]),
    "most_gpus": st.sampled_from([8, 16, 100_000]),
    "work": st.sampled_from([1e-9, 1.0, 1e4, 1e15]),
    "batch": st.sampled_from([1, 64, 1_000_000_000]),
    "workload": st.just("llama"),
    "tenant": st.sampled_from(["root", "bob"]),
    "limit_s": st.floats(1.0, 1e9),
    "brought": st.builds(
        lambda unit_s, watts, steep: {
            "gpu": "a100-sxm",
            "unit": "step",
            "gpus": {
                str(gpus): [{"time_s": unit_s / gpus**steep, "energy_j": unit_s * watts * gpus, "setting": {}}]
                for gpus in (1, 2, 4, 8, 16)
            },
        },
        st.sampled_from([1e-5, 0.2, 1e6]),
        st.sampled_from([1e-3, 300.0, 1e4]),
        st.sampled_from([0.0, 1.0, 3.0]),
    ),
}
PROGRESS = st.none() | st.builds(
    Progress, st.integers(0, 10**6), st.none() | st.integers(1, 10**12), st.just(0), st.just(4000.0)
)


def seen_job(order: Order, runs_on: int, progress: Progress | None, plainly: Fabric, limits: Weights) -> Job:
    """As ``Rounds`` makes it of what the book and the engine have. A belief of its user's own; one of all for plain."""
    fabric = Fabric(MODEL, 8)
    track = Track(
        order,
        belief_of(order, fabric, gpus_there=16),
        plain=plain_belief_of(order, plainly, gpus_there=16),
        done=0.0 if progress is None else float(progress.step),
    )
    track.progress = progress
    ways = track.ways((NODE,), 5000.0)
    way = found(ways, Way(runs_on, 1.0, 1.0, DEFAULT, "gpu")) if runs_on else None
    plain = track.plain((NODE,), limits.plain(order.weight, order.user))
    weight = limits.counted(order.weight, order.user)
    return Job(
        order.name,
        order.submitted_s,
        track.work_left(),
        ways,
        order.gpus,
        way,
        deadline_s=order.deadline_s,
        weight=weight,
        elastic=order.elastic,
        user=order.user,
        plain=plain,
    )


@st.composite
def orders(draw: st.DrawFn) -> tuple[tuple[Order, ...], tuple[Order, ...], tuple[int, ...], Progress | None]:
    """Plain orders of three users, the same where alice adds one field or all to hers, and on what they run."""
    plain, said, runs = [], [], []
    left = 16
    for number in range(draw(st.integers(2, 7))):
        user = draw(st.sampled_from(["alice", "bob", "carol"]))
        gpus = draw(st.sampled_from([1, 2, 4, 8]))
        checkpoint = "/ckpt" if draw(st.booleans()) else None
        order = Order(f"j{number}", ("x",), gpus, 1000.0 + number, checkpoint, user=user)
        plain.append(order)
        names = draw(st.lists(st.sampled_from(sorted(FIELDS)), min_size=1, unique=True)) if user == "alice" else []
        fields: dict[str, Any] = {name: draw(FIELDS[name]) for name in names}
        if fields.get("least_gpus", 1) > gpus:
            del fields["least_gpus"]
        said.append(replace(order, **fields))
        on = gpus if gpus <= left and draw(st.booleans()) else 0
        left -= on
        runs.append(on)
    return tuple(plain), tuple(said), tuple(runs), draw(PROGRESS)


def after_a_round(
    written: tuple[Order, ...], runs: tuple[int, ...], progress: Progress | None, limits: Weights
) -> dict[str, int]:
    plainly = Fabric(MODEL, 8)
    jobs = tuple(
        seen_job(order, on, progress if on and order.user == "alice" else None, plainly, limits)
        for order, on in zip(written, runs, strict=True)
    )
    floor = Floor(NODE)
    for job, on in zip(jobs, runs, strict=True):
        assert not on or floor.place(job.name, on) is not None
    Round(priced(), keep_rigid=True).decide(Snapshot(5000.0, (NODE,), jobs), {"gpu": floor})
    held: dict[str, int] = {}
    for job in jobs:
        gpus = sum(count for _, count in floor.place_of(job.name)) if job.name in floor.places else 0
        held[job.user] = held.get(job.user, 0) + gpus
    return held


@pytest.mark.sampled
@given(drawn=orders())
@settings(max_examples=examples(150), deadline=None)
def test_no_optional_field_of_an_order_and_no_progress_lowers_another_users_gpus(
    drawn: tuple[tuple[Order, ...], tuple[Order, ...], tuple[int, ...], Progress | None],
) -> None:
    plain, said, runs, progress = drawn
    before, after = after_a_round(plain, runs, None, Weights()), after_a_round(said, runs, progress, Weights())
    assert all(after[user] >= gpus for user, gpus in before.items() if user != "alice")


def test_a_million_and_a_wonder_take_no_gpu_from_another_user(scenario) -> None:
    shown = scenario("R28", "one user's weight of 1e6, deadline and points of a wonder", criterion="others as plainly")
    wonder = {str(n): [{"time_s": 1.0 / n**3, "energy_j": 1e-3, "setting": {}}] for n in (1, 2, 4, 8, 16)}
    loud: dict[str, Any] = {
        "weight": 1e6,
        "deadline_s": 5600.0,
        "work": 10.0,
        "brought": {"gpu": "a100-sxm", "unit": "step", "gpus": wonder},
    }
    plain = tuple(Order(user, ("x",), 8, 1000.0, "/ckpt", user=user) for user in ("bob", "carol", "alice"))
    said = tuple(replace(order, **loud) if order.user == "alice" else order for order in plain)
    runs = (8, 8, 0)
    before, after = after_a_round(plain, runs, None, Weights()), after_a_round(said, runs, None, Weights())
    shown.saw(f"GPUs plainly {before}, claimed {after}")
    assert before["bob"] + before["carol"] > 0
    assert all(after[user] >= before[user] for user in ("bob", "carol"))


def test_a_weight_that_the_site_grants_does_count_against_others() -> None:
    orders = tuple(
        Order(f"{user}-{number}", ("x",), 4, 1000.0 + number, user=user, weight=weight)
        for user, weight in (("alice", 1e6), ("bob", 1.0))
        for number in range(4)
    )
    usual = after_a_round(orders, (0,) * 8, None, Weights())
    granted = after_a_round(orders, (0,) * 8, None, Weights(users={"alice": 10.0}))
    assert granted["alice"] > usual["alice"]
    assert granted["alice"] == 16


def test_one_user_alone_is_decided_as_ever_and_once() -> None:
    calls: list[Snapshot] = []

    def policy(seen: Snapshot, budget: object) -> Allocation:
        calls.append(seen)
        return first_come(seen, budget)  # type: ignore[arg-type]

    jobs = tuple(
        Job(name, 0.0, 1.0, toy_ways(), 1, weight=5.0, user="a", plain=Plain(toy_ways(), 9.0)) for name in "xy"
    )
    Round(policy).decide(Snapshot(0.0, (TOY,), jobs), {"toy": Floor(TOY)})
    assert [seen.jobs for seen in calls] == [jobs]


# The site's file.


def test_the_site_file_says_how_much_a_weight_counts_by_user_then_account_then_qos(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(
        "[weight]\nmost = 1.5\nusers = { alice = 2 }\naccounts = { vision = 4, slow = 0.5 }\nqos = { urgent = 10 }\n"
    )
    site = fairness.load(path)
    assert site.limit("alice", "vision", "urgent") == 2
    assert site.limit("bob", "vision", "urgent") == 4
    assert site.limit("bob", "", "urgent") == 10
    assert site.limit("bob") == 1.5
    assert site.counted(1e6, "bob", "slow") == site.plain(1e6, "bob", "slow") == 0.5
    assert (site.counted(0.1, "bob"), site.plain(0.1, "bob")) == (0.1, 1.0)
    assert site.clipped(1.5, "bob") == ""
    assert "1e+06 counts as 1.5" in site.clipped(1e6, "bob")
    assert Weights().limit("anybody") == 1.0


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[weight]\nmost = true\n", "weight.most = True"),
        ("[weight]\nmost = nan\n", "weight.most = nan"),
        ("[weight]\nmost = 0\n", "weight.most = 0"),
        ("[weight]\nuser = {}\n", "weight.user is not known"),
        ("[wieght]\n", "'wieght' is not known"),
        ("weight = 3\n", "write [weight]"),
        ("[weight]\nusers = 3\n", "users = { name = 2 }"),
        ("[weight\n", "site file"),
        ("[weight]\nqos = { x = 1e7 }\n", "at most 1e+06"),
    ],
)
def test_a_site_file_that_is_not_understood_is_one_line(tmp_path: Path, text: str, word: str) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    with pytest.raises(BadSpec) as fault:
        fairness.load(path)
    assert word in str(fault.value)
    assert "\n" not in str(fault.value)


def test_a_site_file_that_others_can_write_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text("")
    path.chmod(0o666)
    with pytest.raises(BadSpec, match="not trusted"):
        fairness.load(path)
    with pytest.raises(BadSpec, match="leave --site out"):
        fairness.load(tmp_path / "none.toml")


def test_weights_of_accounts_and_qos_count_only_where_the_engine_says_who_may_use_them() -> None:
    weights = fairness.parse("[weight]\nusers = { alice = 2 }\naccounts = { vision = 4 }\nqos = { urgent = 10 }")
    assert weights.enforced({"account", "qos"}) == (weights, "")
    kept, line = weights.enforced({"account"})
    assert [kept.limit("alice"), kept.limit("bob", "vision"), kept.limit("bob", "", "urgent")] == [2, 4, 1]
    assert "weight.qos of the site file left aside" in line
    kept, line = weights.enforced(())
    assert [kept.limit("alice"), kept.limit("bob", "vision"), kept.limit("bob", "", "urgent")] == [2, 1, 1]
    assert "AccountingStorageEnforce=associations,qos" in line
