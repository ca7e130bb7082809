"""GPUs that wait for others may be slower; the straggler never is."""

from __future__ import annotations

import pytest

from joulewise.core.block import Block
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
from joulewise.tune.slack import LEAST_READINGS, Slack
from tests.tune.jobs import COMPUTE

SPACE = Space({"sm_mhz": Choices(345, 1980, 15)})
HELD = Setting(sm_mhz=1500)
UUIDS = ("GPU-a", "GPU-b")


def looked(powers_w: tuple[float, ...], *, count: int = LEAST_READINGS) -> Slack:
    slack = Slack([f"GPU-{name}" for name in "abcd"[: len(powers_w)]], 0.02, AlphaBudget(0.05))
    for number in range(count):
        slack.read([Reading(number / 10.0, power_w=power_w) for power_w in powers_w], [100.0] * len(powers_w))
    return slack


def block(unit_s: float, unit_j: float) -> Block:
    return Block(HELD, 0.0, 5.0, 5.0 / unit_s, 5.0, 5.0 * unit_j / unit_s, 0.1, 0.002)


def test_equal_gpus_have_no_slack() -> None:
    slack = looked((500.0, 480.0))
    assert not slack.wants(HELD, SPACE)
    assert slack.kept[HELD] == {}


def test_only_the_gpu_that_waits_is_slowed() -> None:
    slack = looked((500.0, 300.0, 490.0))
    assert slack.wants(HELD, SPACE)
    own, _ = slack.pair()
    assert set(own) == {"GPU-b"}
    assert 0.6 * 1500 <= own["GPU-b"]["sm_mhz"] < 1500


def test_nothing_is_said_before_enough_was_seen_or_with_one_gpu() -> None:
    assert not looked((500.0, 300.0), count=LEAST_READINGS - 1).wants(HELD, SPACE)
    assert not looked((500.0,)).wants(HELD, SPACE)
    assert not looked((500.0, 300.0)).wants(Setting(power_limit_w=400), Space({"power_limit_w": Choices(200, 700)}))


def test_slack_that_costs_nothing_is_kept() -> None:
    slack = looked((500.0, 300.0))
    for _ in range(12):
        if not slack.wants(HELD, SPACE):
            break
        slack.tell(HELD, block(1.0, 90.0), block(1.0, 100.0))
    assert set(slack.kept[HELD]) == {"GPU-b"}
    assert "run slower" in slack.says


@pytest.mark.parametrize(("unit_s", "unit_j"), [(1.02, 90.0), (1.0, 100.5)])
def test_slack_that_costs_time_or_saves_nothing_is_given_up(unit_s: float, unit_j: float) -> None:
    slack = looked((500.0, 300.0))
    for _ in range(30):
        if not slack.wants(HELD, SPACE):
            break
        slack.tell(HELD, block(unit_s, unit_j), block(1.0, 100.0))
    assert slack.kept[HELD] == {}
    slack.forget()
    assert slack.kept == {}


def test_all_tests_of_slack_together_take_no_more_error_than_the_job_has() -> None:
    budget = AlphaBudget(0.05)
    slack = Slack(UUIDS, 0.02, budget)
    for _ in range(6):
        for number in range(LEAST_READINGS):
            slack.read([Reading(number / 10.0, power_w=power_w) for power_w in (500.0, 300.0)], [100.0, 100.0])
        assert slack.wants(HELD, SPACE)
        slack.forget()
    assert budget.granted == 6


def test_slack_may_cost_what_the_common_setting_leaves_of_the_bound_and_no_more() -> None:
    assert not looked((500.0, 300.0)).wants(HELD, SPACE, 0.0)
    tight, wide = looked((500.0, 300.0)), looked((500.0, 300.0))
    assert tight.wants(HELD, SPACE, 0.002)
    assert wide.wants(HELD, SPACE, 0.01)
    for slack in (tight, wide):
        for number in range(24):
            if not slack.wants(HELD, SPACE):
                break
            slack.tell(HELD, block(1.0035 + 0.0001 * (number % 3), 90.0), block(1.0, 100.0))
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
    assert summary.verified[""]
    assert any(isinstance(event, Shifted) and event.what == "slack" for event in events)
    own = online.subject.own
    assert set(own) == {gpus[1].info.uuid}
    time.sleep(0.5)
    assert (gpus[1].read().sm_mhz or 0.0) < (gpus[0].read().sm_mhz or 0.0)
    # Both GPUs' joules are in every block.
    seen = [event for event in events if isinstance(event, Seen)]
    assert seen[0].block.power_w > 400.0
    lease.release()
