"""What is said to an engine follows from what it shows and what is aimed at, and from nothing else."""

from __future__ import annotations

import pytest

from joulewise.cluster.engine import JobSeen, JobState, Order
from joulewise.cluster.queue import Aim, Kept
from joulewise.cluster.scheduler_acts import Act, Standing, done, standing, wanted
from tests.cluster.toys import toy_ways

ORDER = Order("bert", ("train",), 8, checkpoint="/c")
WAY = toy_ways((8,))[0]
HERE, THERE = {"a": 8}, {"b": 8}


def kept(what: str | None, place: dict[str, int] | None = None, *, reached: int = 0, former: bool = False) -> Kept:
    aim = None if what is None else Aim(what, 2, 0.0, WAY if place else None, place or {}, "because")
    before = Aim("start", 1, 0.0, WAY, HERE) if former else None
    return Kept(ORDER, 1, "17", aim=aim, former=before, reached=reached)


def seen(state: JobState, place: dict[str, int] | None = None) -> JobSeen:
    return JobSeen("bert", "17", state, ORDER, place or {}, 1)


@pytest.mark.parametrize(
    ("book", "shows", "act", "stands"),
    [
        (kept(None), seen("waiting"), None, "waits"),
        (kept("start", HERE), seen("waiting"), Act("start", HERE), "on its way"),
        (kept("start", HERE), seen("starting", HERE), None, "as aimed"),
        (kept("start", HERE, reached=2), seen("running", HERE), None, "as aimed"),
        (kept("start", HERE, reached=2), seen("waiting"), Act("start", HERE), "dropped"),
        (kept("retune", HERE), seen("waiting"), Act("start", HERE), "dropped"),
        (kept("start", HERE, reached=2), seen("running", THERE), Act("resize", HERE), "elsewhere"),
        (kept("resize", THERE, former=True), seen("running", HERE), Act("resize", THERE), "on its way"),
        (kept("resize", THERE, former=True), seen("leaving", HERE), Act("resize", THERE), "on its way"),
        (kept("resize", THERE, former=True), seen("waiting"), Act("start", THERE), "on its way"),
        (kept("resize", THERE, former=True), seen("running", {"c": 8}), Act("resize", THERE), "elsewhere"),
        (kept("start", THERE, former=True), seen("running", HERE), Act("resize", THERE), "on its way"),
        (kept("preempt", former=True), seen("running", HERE), Act("preempt"), "waits"),
        (kept("preempt", former=True), seen("waiting"), Act("preempt"), "waits"),
        (kept("stop"), seen("running", HERE), Act("stop", why="because"), "waits"),
        (kept(None), seen("running", HERE), None, "elsewhere"),
    ],
)
def test_the_act_and_the_standing_of_a_job(book: Kept, shows: JobSeen, act: Act | None, stands: Standing) -> None:
    assert wanted(book, shows) == act
    assert standing(book, shows) == stands


def test_an_aim_is_done_when_the_engine_shows_it() -> None:
    assert done(kept("preempt"), seen("waiting"))
    assert not done(kept("preempt"), seen("leaving", HERE))
    assert not done(kept("stop"), seen("waiting"))
    assert done(kept(None), seen("waiting"))
