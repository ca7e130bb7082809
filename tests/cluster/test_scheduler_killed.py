"""A scheduler killed before and after every single thing that it does: nothing is lost, nothing is done twice."""

from __future__ import annotations

from collections import Counter

import pytest

from joulewise.cluster.simulator import Submission
from joulewise.cluster.state import Allocation, Budget, Snapshot
from joulewise.core.event import Aimed, Ordered, Turned
from tests.cluster.toy_engine import Rig
from tests.cluster.toys import TOY, toy_job
from tests.tiers import sample


class Killed(BaseException):
    """As a kill -9 would end it: nothing catches this."""


def fair(snapshot: Snapshot, budget: Budget) -> Allocation:
    """Everybody the same power of two of GPUs, the first ones where it is not enough: much is resized."""
    most = 1 << (32 // max(1, len(snapshot.jobs))).bit_length() - 1
    ways = {}
    left = 32
    for job in snapshot.jobs:
        fits = [way for way in job.ways if way.gpus <= (most if job.elastic else left)]
        if fits and max(way.gpus for way in fits) <= left:
            ways[job.name] = max(fits, key=lambda way: (way.gpus, -way.unit_s))
            left -= ways[job.name].gpus
    return Allocation(ways)


def jobs() -> list[Submission]:
    """Four that come one after the other, so that the first are resized, and one of them is never elastic."""
    made = [toy_job(f"j{i}", 100.0 * i, work, gpus) for i, (work, gpus) in enumerate([(5000, 8), (2000, 4), (600, 2)])]
    rigid = toy_job("rigid", 150.0, 1500, 8)
    return [*made, Submission("rigid", 150.0, 1500, 8, rigid.truth, rigid.belief, elastic=False)]


def rig(*, agents: bool) -> Rig:
    return Rig(
        [TOY], jobs(), fair, agents=agents, period_s=20.0, watch_s=20.0, account_s=300.0, save_s=3.0, cap_w=9000.0
    )


def steps_of(undisturbed: Rig) -> list[str]:
    said: list[str] = []
    undisturbed.step = said.append
    undisturbed.play()
    return said


def killed_at(one: Rig, when: int) -> None:
    """Play; at the ``when``-th step the scheduler is killed, and another one takes over."""
    count = 0

    def step(_: str) -> None:
        nonlocal count
        count += 1
        if count == when:
            raise Killed

    one.step = step
    try:
        one.play()
    except Killed:
        one.fresh().lead()
        one.play()


def check(one: Rig) -> None:
    """Every job ended once, with all its work done; the book and the site say the same."""
    events = [event for _, event in one.journal.read()]
    assert Counter(event.name for event in events if isinstance(event, Ordered)) == Counter(list(one.submissions))
    ends = [event.name for event in events if isinstance(event, Turned) and event.what == "ended"]
    assert Counter(ends) == Counter(list(one.submissions))
    for name, submission in one.submissions.items():
        job = one.site.jobs[name]
        assert job.state == "ended"
        assert job.life.done == pytest.approx(submission.work)
        kept = one.scheduler.book.jobs[name]
        assert (kept.state, kept.settled, kept.ended_s) == ("ended", True, job.since_s)
        assert kept.starts == job.starts
    assert one.site.jobs["rigid"].starts == 1
    assert [said.about for said in one.site.heard if said.what == "submitted"] == list(one.site.jobs)


@pytest.mark.sampled
@pytest.mark.parametrize("agents", [False, True])
def test_killed_at_every_step_every_job_ends_once_with_all_its_work_done(agents: bool) -> None:
    said = steps_of(rig(agents=agents))
    assert {"before start", "after start", "before resize", "before Aimed", "after Turned"} <= set(said)
    # With agents there are hundreds: a few of each kind, and all without.
    often = Counter[str]()
    points = []
    for when, what in enumerate(said, start=1):
        often[what] += 1
        if not agents or often[what] <= 4:
            points.append(when)
    assert len(points) > 40
    for when in sample(points, 12, of=f"a scheduler's steps, {agents}"):
        one = rig(agents=agents)
        killed_at(one, when)
        check(one)


def test_what_was_aimed_at_is_said_again_and_changed_only_by_a_new_decision() -> None:
    one = rig(agents=False)

    def step(what: str) -> None:
        if what == "before start":
            raise Killed

    one.step = step
    with pytest.raises(Killed):
        one.play()
    aimed = {name: kept.aim for name, kept in one.scheduler.book.jobs.items()}
    one.step = lambda _: None
    again = one.fresh()
    again.lead()
    assert {name: kept.aim for name, kept in again.book.jobs.items()} == aimed
    one.look()
    assert one.site.jobs["j0"].starts == 1
    assert sum(isinstance(event, Aimed) for _, event in one.journal.read()) == 1
