"""One round: the least change, nobody stopped for room that is still booting, moves only where they pay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from joulewise.cluster.nodes import NodePower
from joulewise.cluster.placement import Floor
from joulewise.cluster.round import Decision, Round
from joulewise.cluster.simulator import simulate
from joulewise.cluster.state import Allocation, Budget, Job, Kind, Snapshot, Way
from tests.cluster.toys import TOY, first_come, toy_job, toy_ways

WAYS = {(way.gpus, int(way.setting["sm_mhz"])): way for way in toy_ways()}


def way(gpus: int, mhz: int = 1400, *, kind: str = "toy") -> Way:
    return replace(WAYS[gpus, mhz], kind=kind)


def job(name: str, runs: Way | None = None, *, work_left: float = 1e6) -> Job:
    return Job(name, 0.0, work_left, toy_ways(), 1, runs)


def decide(
    jobs: list[Job],
    wanted: Mapping[str, Way],
    floors: Mapping[str, Floor],
    *,
    nodes: NodePower | None = None,
    budget: Budget | None = None,
    now_s: float = 0.0,
) -> Decision:
    snapshot = Snapshot(now_s, tuple(floor.kind for floor in floors.values()), tuple(jobs))
    return Round(lambda *_: Allocation(wanted), nodes=nodes, budget=budget).decide(snapshot, floors)


def floor_with(jobs: list[Job], kind: Kind = TOY) -> dict[str, Floor]:
    floor = Floor(kind)
    for one in jobs:
        if one.way is not None:
            assert floor.place(one.name, one.way.gpus) is not None
    return {kind.name: floor}


def said(decision: Decision) -> dict[str, str]:
    return {move.job: move.what for move in decision.moves}


def test_each_change_has_its_name_and_what_stays_the_same_is_left_alone() -> None:
    jobs = [
        job("stays", way(2)),
        job("slows", way(2)),
        job("grows", way(1)),
        job("leaves", way(4)),
        job("comes"),
        job("waits"),
    ]
    floors = floor_with(jobs)
    wanted = {"stays": replace(way(2), unit_s=9.0), "slows": way(2, 700), "grows": way(4), "comes": way(1)}
    decision = decide(jobs, wanted, floors)
    assert said(decision) == {"leaves": "preempt", "slows": "retune", "grows": "resize", "comes": "start"}
    assert decision.moves[0].what == "preempt"  # what frees comes first
    assert {move.job: sum(gpus for _, gpus in move.place) for move in decision.moves} == {
        "leaves": 0,
        "slows": 2,
        "grows": 4,
        "comes": 1,
    }
    assert set(floors["toy"].places) == {"stays", "slows", "grows", "comes"}


def test_two_jobs_trade_sizes_in_one_round_on_a_full_cluster() -> None:
    jobs = [job("a", way(8)), job("b", way(16)), job("c", way(8))]
    floors = floor_with(jobs)
    decision = decide(jobs, {"a": way(16), "b": way(8), "c": way(8)}, floors)
    assert said(decision) == {"a": "resize", "b": "resize"}


def test_two_jobs_trade_kinds_in_one_round_on_full_floors() -> None:
    old = replace(TOY, name="old")
    both = toy_ways() + tuple(replace(way, kind="old") for way in toy_ways())
    jobs = [
        Job("a", 0.0, 1.0, both, 16, replace(way(16), kind="toy")),
        Job("a2", 0.0, 1.0, both, 16, replace(way(16), kind="toy")),
        Job("b", 0.0, 1.0, both, 16, way(16, kind="old")),
        Job("b2", 0.0, 1.0, both, 16, way(16, kind="old")),
    ]
    floors = {"toy": Floor(TOY), "old": Floor(old)}
    for one in jobs:
        assert one.way is not None
        floors[one.way.kind].place(one.name, 16)
    wanted = {"a": way(16, kind="old"), "a2": way(16), "b": way(16), "b2": way(16, kind="old")}
    assert said(decide(jobs, wanted, floors)) == {"a": "resize", "b": "resize"}
    assert set(floors["old"].places) == {"a", "b2"}


def test_who_wants_more_than_powered_nodes_have_waits_or_runs_on_while_just_enough_nodes_boot() -> None:
    jobs = [job("grows", way(4)), job("comes")]
    floors = floor_with(jobs)
    for node in (1, 2, 3):
        floors["toy"].shut(node)
    decision = decide(jobs, {"grows": way(8), "comes": way(8)}, floors, nodes=NodePower(warm=0))
    # "grows" has room on its own node; "comes" waits for one node, and no more are called for.
    assert said(decision) == {"grows": "resize"}
    assert decision.power_on == (("toy", 1),)
    again = decide(
        [job("grows", way(8)), job("comes")], {"grows": way(8), "comes": way(8)}, floors, nodes=NodePower(warm=0)
    )
    assert (again.moves, again.power_on) == ((), ())  # it is booting already
    floors["toy"].booted(1)
    then = decide(
        [job("grows", way(8)), job("comes")], {"grows": way(8), "comes": way(8)}, floors, nodes=NodePower(warm=0)
    )
    assert said(then) == {"comes": "start"}


def test_a_job_that_cannot_grow_yet_keeps_what_it_has() -> None:
    jobs = [job("grows", way(8)), job("small", way(4))]
    floors = floor_with(jobs)
    for node in (2, 3):
        floors["toy"].shut(node)
    decision = decide(jobs, {"grows": way(16), "small": way(4)}, floors, nodes=NodePower(warm=0))
    assert decision.moves == ()
    assert floors["toy"].place_of("grows") == ((0, 8),)
    assert len(decision.power_on) == 1  # 8 more GPUs are wanted, 4 are free


def half_full(nodes: int) -> Floor:
    """a on the first node, b on the second, four free GPUs beside each; the others sleep."""
    floor = Floor(replace(TOY, nodes=nodes))
    for name in ("a", "x", "b", "y"):
        floor.place(name, 4)
    floor.release("x")
    floor.release("y")
    for node in range(2, nodes):
        floor.shut(node)
    return floor


def test_others_are_moved_when_there_is_no_node_to_wait_for() -> None:
    jobs = [job("a", way(4)), job("b", way(4)), job("new")]
    decision = decide(jobs, {"a": way(4), "b": way(4), "new": way(8)}, {"toy": half_full(2)})
    assert sorted(said(decision).values()) == ["migrate", "start"]


def test_others_are_moved_only_if_that_takes_less_than_a_boot() -> None:
    jobs = [job("a", way(4)), job("b", way(4)), job("new")]
    wanted = {"a": way(4), "b": way(4), "new": way(8)}
    slow, quick = half_full(3), half_full(3)
    quick.kind = replace(quick.kind, boot_s=20.0)  # a restart on four GPUs takes 35 s
    moved = decide(jobs, wanted, {"toy": slow}, nodes=NodePower(warm=0))
    assert sorted(said(moved).values()) == ["migrate", "start"]
    assert moved.power_on == ()
    waits = decide(jobs, wanted, {"toy": quick}, nodes=NodePower(warm=0))
    assert said(waits) == {}
    assert waits.power_on == (("toy", 2),)
    assert quick.place_of("a") != quick.place_of("b")


def test_others_are_moved_for_a_job_that_grows_only_if_it_gains_more_than_they_lose() -> None:
    def settled(work_left: float) -> tuple[Decision, Floor]:
        floor = Floor(replace(TOY, nodes=2))
        for name, gpus in (("grows", 4), ("beside", 2), ("gone", 2), ("other", 4)):
            floor.place(name, gpus)
        floor.release("gone")
        jobs = [job("grows", way(4), work_left=work_left), job("beside", way(2)), job("other", way(4)), job("new")]
        wanted = {"grows": way(8), "beside": way(2), "other": way(4), "new": way(2)}
        return decide(jobs, wanted, {"toy": floor}), floor

    # Eight GPUs instead of four save 0.14 s a unit; "beside" has to make room, and its restart takes 33 s.
    grown, floor = settled(1000.0)
    assert said(grown) == {"grows": "resize", "beside": "migrate", "new": "start"}
    stays, floor = settled(100.0)
    assert said(stays) == {"new": "start"}
    assert floor.place_of("grows") == ((0, 4),)
    assert floor.used == 4 + 2 + 4 + 2


def test_a_nearly_empty_node_is_emptied_when_that_pays_and_not_for_a_job_that_soon_ends() -> None:
    def split() -> tuple[list[str], dict[str, Floor]]:
        floor = Floor(TOY)
        for name, gpus in (("big", 4), ("gone", 4), ("small", 1)):
            floor.place(name, gpus)
        floor.release("gone")
        return ["big", "small"], {"toy": floor}

    wanted = {"big": way(4), "small": way(1)}
    for work_left, moves in ((1e5, {"small": "migrate"}), (1000.0, {})):
        _, floors = split()
        jobs = [job("big", way(4)), job("small", way(1), work_left=work_left)]
        assert said(decide(jobs, wanted, floors, nodes=NodePower())) == moves
    _, floors = split()
    assert said(decide(jobs, wanted, floors)) == {}  # where nodes never sleep nothing is gained


def test_a_cap_holds_although_the_policy_forgot_it_and_jobs_lie_in_pieces() -> None:
    jobs = [job(name) for name in "abcd"]
    nodes = NodePower(warm=0)
    for power_w in (1000.0, 3000.0, 6000.0, 9000.0):
        floors = floor_with([])
        wanted = dict.fromkeys("abcd", way(8))
        decision = decide(jobs, wanted, floors, nodes=nodes, budget=Budget(power_w=power_w))
        floor = floors["toy"]
        drawn_w = sum(move.way.power_w for move in decision.moves if move.way is not None)
        drawn_w += floor.on * TOY.host_w + floor.free * TOY.idle_gpu_w + len(floor.off) * TOY.off_w
        assert drawn_w <= power_w


def test_nodes_that_never_sleep_are_priced_as_drawing_what_an_empty_node_draws() -> None:
    seen: list[Snapshot] = []

    def looks(snapshot: Snapshot, budget: Budget) -> Allocation:
        seen.append(snapshot)
        return Allocation({})

    snapshot = Snapshot(0.0, (TOY,), ())
    Round(looks).decide(snapshot, {"toy": Floor(TOY)})
    Round(looks, nodes=NodePower()).decide(snapshot, {"toy": Floor(TOY)})
    assert [one.kinds[0].off_w for one in seen] == [TOY.empty_node_w, TOY.off_w]


def test_packing_needs_fewer_nodes_than_spreading_and_so_less_energy() -> None:
    def joules(placer: str) -> float:
        jobs = [toy_job(f"j{at}", 60.0 * at, 4000.0, 2) for at in range(8)]
        round_ = Round(first_come, nodes=NodePower(), placer=placer, migrate=False)  # type: ignore[arg-type]
        return simulate(jobs, [TOY], round_).energy_until_j(10_000.0)

    assert joules("buddy") < 0.9 * joules("spread")
    assert joules("buddy") == pytest.approx(joules("first fit"), rel=0.2)
