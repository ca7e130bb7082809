"""Under a cap nobody is stopped whom lower clocks can keep running; for other reasons policies still stop jobs."""

from __future__ import annotations

from dataclasses import replace

from joulewise.cluster.calm import calm
from joulewise.cluster.purse import Purse
from joulewise.cluster.round import Round
from joulewise.cluster.state import Allocation, Budget, Job, Kind, Snapshot, Way, cluster_power_w
from tests.cluster.toys import TOY, toy_ways

MENU = toy_ways((8,))
AWAKE: Kind = replace(TOY, off_w=TOY.empty_node_w)


def busy(jobs: int = 4) -> Snapshot:
    return Snapshot(
        0.0, (AWAKE,), tuple(Job(f"j{at}", float(at), 1000.0, MENU, 8, way=MENU[0]) for at in range(jobs)), energy_j=0.0
    )


def few_at_full_clock(snapshot: Snapshot, budget: Budget) -> Allocation:
    """As many as the watts feed at the top clock; the others wait, whether they run or not."""
    ways: dict[str, Way] = {}
    for job in snapshot.jobs:
        power_w = cluster_power_w(snapshot, Allocation({**ways, job.name: MENU[0]}))
        if budget.power_w is None or power_w <= budget.power_w:
            ways[job.name] = MENU[0]
    return Allocation(ways)


def last_come(snapshot: Snapshot, budget: Budget) -> Allocation:
    """Only the last one ever runs."""
    return Allocation({snapshot.jobs[-1].name: MENU[0]})


FULL_W = cluster_power_w(busy(), Allocation({f"j{at}": MENU[0] for at in range(4)}))


def test_who_would_be_stopped_for_watts_runs_on_at_a_lower_clock() -> None:
    budget = Budget(power_w=0.8 * FULL_W)
    wanted = few_at_full_clock(busy(), budget)
    assert len(wanted.ways) == 2
    kept = calm(busy(), budget, few_at_full_clock, wanted)
    assert set(kept.ways) == {"j0", "j1", "j2", "j3"}
    assert cluster_power_w(busy(), kept) <= 0.8 * FULL_W
    assert kept.reasons["j3"] == "it runs on at a lower clock: the cap can be kept without stopping it"


def test_where_clocks_are_not_enough_the_policy_decides() -> None:
    budget = Budget(power_w=4 * TOY.empty_node_w + 2000.0)
    wanted = few_at_full_clock(busy(), budget)
    assert calm(busy(), budget, few_at_full_clock, wanted) is wanted


def test_who_is_stopped_for_another_reason_is_stopped() -> None:
    wanted = last_come(busy(), Budget())
    assert calm(busy(), Budget(power_w=0.8 * FULL_W), last_come, wanted) is wanted
    assert calm(busy(), Budget(), last_come, wanted) is wanted


def test_a_calm_round_retunes_where_another_would_preempt_and_only_under_a_cap() -> None:
    def moves(*, calmly: bool, purse: Purse) -> set[str]:
        round_ = Round(few_at_full_clock, purse=purse, calm=calmly)
        floors = round_.floors((TOY,))
        for at in range(4):
            floors["toy"].place(f"j{at}", 8)
        seen = replace(busy(), kinds=(TOY,))
        return {move.what for move in round_.decide(seen, floors).moves}

    assert moves(calmly=False, purse=Purse(power_w=0.8 * FULL_W)) == {"preempt"}
    assert moves(calmly=True, purse=Purse(power_w=0.8 * FULL_W)) == {"retune"}
    idle_w = 4 * TOY.empty_node_w
    energy_j = 86_400.0 * (idle_w + (0.8 * FULL_W - idle_w) / 3.0)  # a busy hour may draw three times the even course
    assert moves(calmly=True, purse=Purse(energy_j=energy_j)) >= {"preempt"}


def test_what_clocks_can_do_at_once_is_done_without_the_policy() -> None:
    round_ = Round(last_come, purse=Purse(power_w=0.8 * FULL_W))
    floors = round_.floors((TOY,))
    for at in range(4):
        floors["toy"].place(f"j{at}", 8)
    seen = replace(busy(), kinds=(TOY,))
    decision = round_.slow(seen, floors)
    assert decision is not None
    assert {move.what for move in decision.moves} == {"retune"}
    deep = Round(last_come, purse=Purse(power_w=4 * TOY.empty_node_w + 2000.0))
    assert deep.slow(seen, floors) is None
    assert Round(last_come).slow(seen, floors) is None
