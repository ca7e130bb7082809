"""GPUs that wait for others may be slower; the straggler never is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from joulewise.core.block import Block, Role
from joulewise.core.event import Seen, Shifted
from joulewise.core.knob import Choices, Setting, Space
from joulewise.core.marks import MarkKind
from joulewise.core.measurement import Reading
from joulewise.core.objective import MinEnergy
from joulewise.core.timeline import Loop, VirtualTime
from joulewise.device.hold import hold
from joulewise.device.virtual import VirtualGpu
from joulewise.model import catalog
from joulewise.model.workloads import stretched
from joulewise.monitor.steps import MemoryFeed
from joulewise.store.journal import MemoryJournal
from joulewise.tune.guard import AlphaBudget
from joulewise.tune.online import build
from joulewise.tune.slack import LEAST_READINGS, LEFT, Slack
from joulewise.tune.verify import verify
from tests.tune.jobs import COMPUTE

SPACE = Space({"sm_mhz": Choices(345, 1980, 15)})
HELD = Setting(sm_mhz=1500)
UUIDS = ("GPU-a", "GPU-b")


def looked(powers_w: tuple[float, ...], *, count: int = LEAST_READINGS) -> Slack:
    slack = Slack([f"GPU-{name}" for name in "abcd"[: len(powers_w)]], 0.02, AlphaBudget(0.05))
    for number in range(count):
        slack.read([Reading(number / 10.0, power_w=power_w) for power_w in powers_w], [100.0] * len(powers_w))
    return slack


def block(unit_s: float, unit_j: float, *, slack: bool = False) -> Block:
    return Block(HELD, 0.0, 5.0, 5.0 / unit_s, 5.0, 5.0 * unit_j / unit_s, 0.1, 0.002, slack=slack)


def pairs(slack: Slack, count: int, unit_s: Callable[[int], float], unit_j: float = 90.0, left: float = 1.0) -> int:
    """Hold pairs of blocks, as long as they are asked for; how many were told."""
    for number in range(count):
        for _ in range(2):
            own = slack.next(HELD, SPACE, left)
            if HELD in slack.kept:
                return number
            made = block(unit_s(number), unit_j, slack=True) if own else block(1.0, 100.0)
            slack.held(made)
    return count


def test_equal_gpus_have_no_slack() -> None:
    slack = looked((500.0, 480.0))
    assert slack.next(HELD, SPACE) == {}
    assert slack.kept[HELD] == {}


def test_only_the_gpu_that_waits_is_slowed_in_one_half_of_a_pair() -> None:
    slack = looked((500.0, 300.0, 490.0))
    halves = []
    for _ in range(2):
        halves.append(slack.next(HELD, SPACE))
        slack.held(block(1.0, 100.0, slack=bool(halves[-1])))
    (own,) = filter(None, halves)
    assert set(own) == {"GPU-b"}
    assert 0.6 * 1500 <= own["GPU-b"]["sm_mhz"] < 1500


def test_nothing_is_said_before_enough_was_seen_or_with_one_gpu() -> None:
    assert not asked(looked((500.0, 300.0), count=LEAST_READINGS - 1))
    assert not asked(looked((500.0,)))
    assert not asked(looked((500.0, 300.0)), Setting(power_limit_w=400), Space({"power_limit_w": Choices(200, 700)}))
    assert asked(looked((500.0, 300.0)))


def asked(slack: Slack, setting: Setting = HELD, space: Space = SPACE, left: float = 1.0) -> bool:
    """Whether either half of a pair is asked for with slack."""
    found = False
    for _ in range(2):
        own = slack.next(setting, space, left)
        found |= bool(own)
        slack.held(replace(block(1.0, 100.0), slack=bool(own), setting=setting))
    return found


def test_slack_that_costs_nothing_is_kept_and_then_given_in_every_block() -> None:
    slack = looked((500.0, 300.0))
    assert pairs(slack, 12, lambda _: 1.0) < 12
    assert set(slack.kept[HELD]) == {"GPU-b"}
    assert "run slower" in slack.says
    assert slack.next(HELD, SPACE, long=False) == slack.kept[HELD]


@pytest.mark.parametrize(("unit_s", "unit_j"), [(1.02, 90.0), (1.0, 100.5)])
def test_slack_that_costs_time_or_saves_nothing_is_given_up(unit_s: float, unit_j: float) -> None:
    slack = looked((500.0, 300.0))
    pairs(slack, 30, lambda _: unit_s, unit_j)
    assert slack.kept[HELD] == {}
    slack.forget()
    assert slack.kept == {}


def test_a_pair_that_something_came_between_is_none() -> None:
    slack = looked((500.0, 300.0))
    for interrupt in (slack.interrupted, lambda: slack.next(HELD, SPACE, long=False)):
        slack.held(block(1.0, 100.0, slack=bool(slack.next(HELD, SPACE))))
        interrupt()
        assert slack.held(block(1.0, 100.0)) is None
        own = slack.next(HELD, SPACE)  # first of a new pair, by a new coin
        assert slack.held(block(1.0, 90.0, slack=bool(own))) is None
        own = slack.next(HELD, SPACE)
        assert slack.held(block(1.0, 90.0, slack=bool(own))) is not None


def test_another_setting_has_to_wait_for_the_test_that_is_under_way() -> None:
    slack, other = looked((500.0, 300.0)), Setting(sm_mhz=1800)
    assert asked(slack)
    assert not asked(slack, other)
    pairs(slack, 12, lambda _: 1.0)
    assert asked(slack, other)


def test_a_setting_that_was_left_for_good_takes_its_test_with_it() -> None:
    slack, other = looked((500.0, 300.0)), Setting(sm_mhz=1800)
    assert asked(slack)
    assert [slack.next(other, SPACE) for _ in range(LEFT - 1)] == [{}] * (LEFT - 1)
    assert asked(slack, other)


def test_all_tests_of_slack_together_take_no_more_error_than_the_job_has() -> None:
    budget = AlphaBudget(0.05)
    slack = Slack(UUIDS, 0.02, budget)
    for _ in range(6):
        for number in range(LEAST_READINGS):
            slack.read([Reading(number / 10.0, power_w=power_w) for power_w in (500.0, 300.0)], [100.0, 100.0])
        assert asked(slack)
        slack.forget()
    assert budget.granted == 6


def test_slack_may_cost_what_the_common_setting_leaves_of_the_bound_and_no_more() -> None:
    assert not asked(looked((500.0, 300.0)), left=0.0)
    tight, wide = looked((500.0, 300.0)), looked((500.0, 300.0))
    for slack, left in ((tight, 0.002), (wide, 0.01)):
        pairs(slack, 24, lambda number: 1.0035 + 0.0001 * (number % 3), left=left)
    assert tight.kept[HELD] == {}
    assert set(wide.kept[HELD]) == {"GPU-b"}


def test_a_reading_that_is_missing_counts_for_nothing() -> None:
    slack = Slack(UUIDS, 0.02, AlphaBudget(0.05))
    slack.read([Reading(0.0, power_w=300.0), None], [100.0, 100.0])
    slack.read([Reading(0.0, power_w=300.0)], [100.0])
    assert slack.shares() == [1.0, 1.0]


@pytest.mark.slow
def test_a_synchronous_job_of_two_gpus_has_one_setting_and_one_of_them_gives_its_slack() -> None:
    time = VirtualTime()
    gpus = [VirtualGpu(catalog.load("h200"), time=time, index=index, gain=1.0) for index in range(2)]
    feed, journal = MemoryFeed(time), MemoryJournal()
    loads = (stretched(COMPUTE, 0.2, 0.0), stretched(COMPUTE, 0.1, 0.0))  # the second waits half of every step

    def train() -> Loop[None]:
        while True:
            jobs = [gpu.submit(load, pid=5) for gpu, load in zip(gpus, loads, strict=True)]
            ends_s = []
            for gpu, job in zip(gpus, jobs, strict=True):
                ends_s.append((yield from gpu.finish(job)))
            feed.mark(MarkKind.STEP, time_s=max(ends_s))

    lease = hold(gpus)
    online = build(gpus, lease=lease, feed=feed, objective=MinEnergy(0.05), journal=journal)

    def end() -> Loop[None]:
        yield 900.0
        online.stop()

    for loop in (train(), end()):
        time.spawn(loop)
    summary = time.run(online.loop())
    events = [event for _, event in journal.read()]
    assert any(isinstance(event, Shifted) and event.what == "slack" for event in events)
    own = online.subject.own
    assert set(own) == {gpus[1].info.uuid}
    time.sleep(0.5)
    assert (gpus[1].read().sm_mhz or 0.0) < (gpus[0].read().sm_mhz or 0.0)
    # Both GPUs' joules are in every block, and every block that was held is in the journal.
    seen = [event for event in events if isinstance(event, Seen)]
    assert seen[0].block.power_w > 400.0
    assert verify(events).problems == ()
    slack = [each for each in seen if each.block.slack]
    assert {each.role for each in slack} == {Role.HOLD}
    first_s = next(event.time_s for event in events if isinstance(event, Shifted) and event.what == "slack")
    tested = [
        each
        for each in seen
        if each.role is Role.HOLD
        and slack[0].block.start_s - 11.0 <= each.block.start_s
        and each.block.end_s <= first_s
    ]
    assert 0.2 < sum(each.block.slack for each in tested) / len(tested) < 0.8  # halves of pairs, and what came between
    covered_s = sum(each.block.duration_s for each in seen)
    assert covered_s > 0.9 * (seen[-1].block.end_s - seen[0].block.start_s)
    assert summary.proof is not None
    assert summary.proof.energy is not None
    assert summary.proof.energy.high < -0.02
    lease.release()
