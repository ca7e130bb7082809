"""Plays plans in stock ``torch.distributed.pipelining``: one line around the training loop, on every rank.

    from joulewise import follow

    with follow(schedule) as job:
        for batch in loader:
            schedule.step(batch)
            optimizer.step()
    print(job.says)

The first iterations measure the stages at a few clocks, a plan is found, played and checked (``tune/follow``). With
``plan`` (or ``JOULEWISE_PLAN``) a plan that was made before is played instead. Nothing that is computed changes, and
nothing is printed but a line at the end, on rank 0; where nothing can be set, training runs as ever, and that line
tells why.

What is touched of torch: ``schedule.step`` and its stages' ``forward_one_chunk``, ``backward_one_chunk`` and
``backward_weight_one_chunk`` are wrapped, on these objects alone, and as before at the end; tests hold the names.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Self

from joulewise.core.errors import BadSpec, JoulewiseError
from joulewise.core.visible import visible
from joulewise.frameworks.pipelining_files import PROFILE
from joulewise.frameworks.pipelining_stamps import Stamps
from joulewise.plan.dag import BACKWARD, FORWARD, INPUT_GRAD, WEIGHT_GRAD
from joulewise.plan.plan import Plan

if TYPE_CHECKING:
    from joulewise.frameworks.pipelining_parts import Parts
    from joulewise.tune.follow import Session

_FOLLOWED = "_joulewise_following"
_OVER = "training is over"
_SINGLE_OR_SEVERAL = ("PipelineScheduleSingle", "PipelineScheduleMulti")


class Following:
    """A schedule that is followed, as long as the context lasts, or the process; made by ``follow``.

    What it has not itself, the schedule has: ``schedule = follow(schedule)`` does, too.
    """

    def __init__(self, schedule: Any, parts: Callable[[list[Any]], Parts]) -> None:
        self._schedule = schedule
        self._parts: Parts | None = None
        self._stamps: Stamps | None = None
        self._wrapped: list[tuple[Any, str, Any]] = []
        self._iteration = 0
        self._training = False
        self._closed = False
        self._says = ""
        schedule.__dict__[_FOLLOWED] = self
        try:
            stages = stages_of(schedule)
            self._parts = parts(stages)
            self._stamps = Stamps(self._parts.session.rank.gpu.time, getattr(stages[0], "device", None))
            self._wrap(stages)
            atexit.register(self.close)
        except JoulewiseError as error:
            self._says = f"no plan: {error}"

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_schedule"], name)

    @property
    def session(self) -> Session | None:
        """What goes on in detail; None where nothing can be followed."""
        return None if self._parts is None else self._parts.session

    @property
    def doing(self) -> str:
        """What goes on, in a word: ``measure``, ``play``, ``off`` …"""
        return "off" if self.session is None else str(self.session.doing)

    @property
    def says(self) -> str:
        """What is being done, or was, or why nothing can be, in a line."""
        session = self.session
        if session is None:
            return self._says
        if session.verdict is None and session.measured is not None and session.off:
            return f"the stages were measured; no plan was played: {session.why}"
        if session.verdict is None:
            return f"no plan: {session.why}" if session.off else f"no plan yet: {session.doing}"
        ended = f"; then it ended: {session.why}" if session.off and session.why != _OVER else ""
        return f"a plan was played in {session.played} iterations: {session.verdict.says}{ended}"

    def close(self) -> None:
        """Follow no more: everything is as before. Idempotent."""
        if self._closed:
            return
        self._closed = True
        for where, name, before in reversed(self._wrapped):
            del where.__dict__[name]
            if before is not None:  # somebody else had wrapped it, too
                setattr(where, name, before)
        self._schedule.__dict__.pop(_FOLLOWED, None)
        atexit.unregister(self.close)
        if self._parts is not None:
            self._parts.session.end(_OVER)
            self._parts.close()
            if self._parts.first:
                print(visible(f"joulewise: {self.says}"), file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # What runs.

    def _wrap(self, stages: list[Any]) -> None:
        for stage in stages:
            self._replace(stage, "forward_one_chunk", self._forward)
            self._replace(stage, "backward_one_chunk", self._backward)
            self._replace(stage, "backward_weight_one_chunk", self._weight)
        self._replace(self._schedule, "step", self._step)

    def _replace(self, where: Any, name: str, wrapped: Callable[..., Any]) -> None:
        self._wrapped.append((where, name, where.__dict__.get(name)))
        run = getattr(where, name)
        setattr(where, name, functools.wraps(run)(functools.partial(wrapped, where, run)))

    def _step(self, schedule: Any, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        assert self._parts is not None
        if not getattr(schedule, "_has_backward", True):  # an evaluation
            return run(*args, **kwargs)
        if not self._parts.session.off:
            goes_on = self._parts.session.turn(self._iteration, self._parts.exchange)
            self._iteration += 1
            if not goes_on:
                self._parts.over()
        self._training = True
        try:
            return run(*args, **kwargs)
        finally:
            self._training = False

    def _forward(self, stage: Any, run: Callable[..., Any], chunk: int, *args: Any, **kwargs: Any) -> Any:
        return self._run(lambda: run(chunk, *args, **kwargs), stage, FORWARD, chunk)

    def _backward(
        self, stage: Any, run: Callable[..., Any], chunk: int, loss: Any = None, full_backward: bool = True, **more: Any
    ) -> Any:
        kind = BACKWARD if full_backward else INPUT_GRAD
        return self._run(lambda: run(chunk, loss=loss, full_backward=full_backward, **more), stage, kind, chunk)

    def _weight(self, stage: Any, run: Callable[..., Any], chunk: int, *args: Any, **kwargs: Any) -> Any:
        return self._run(lambda: run(chunk, *args, **kwargs), stage, WEIGHT_GRAD, chunk)

    def _run(self, run: Callable[[], Any], stage: Any, kind: str, chunk: int) -> Any:
        session = self.session
        if session is None or self._stamps is None or not self._training or session.off:
            return run()
        stamp = self._stamps.begin()
        if stamp is None:
            return run()
        session.rank.begin((int(stage.stage_index), kind, int(chunk)), stamp)
        try:
            return run()
        finally:
            stamp.end()
            session.rank.end()


def follow(
    schedule: Any,
    *,
    plan: Plan | str | os.PathLike[str] | None = None,
    max_slowdown: float = 0.0,
    gpu: str | None = None,
    gpus_per_rank: int = 1,
    model: str | None = None,
) -> Following:
    """Follow a schedule of ``torch.distributed.pipelining``. To be called on every rank, before its first step.

    ``plan`` is a plan or its file, of which rank 0's counts; None: ``JOULEWISE_PLAN``, else one is found in training.
    Of its points the one of least energy is played that is at most ``max_slowdown`` slower than nothing set. ``gpu``
    names this rank's GPU as everywhere; None: its own. ``gpus_per_rank`` is how many GPUs do as each rank does (tensor
    × data parallel), and ``model`` any name of the model, where a plan was made for one. Raises ValueError for a bound
    below 0, and otherwise nothing: where nothing can be followed, ``says`` tells why.
    """
    if not 0 <= max_slowdown < float("inf"):
        raise ValueError(f"max_slowdown is {max_slowdown}; it must be 0 or more")
    already = schedule.__dict__.get(_FOLLOWED)
    if already is not None:
        already.close()

    def parts(stages: list[Any]) -> Parts:
        from joulewise.frameworks.pipelining_parts import make

        write_to = os.environ.get(PROFILE)
        return make(
            schedule,
            stages,
            plan=plan,
            gpu=gpu,
            write_to=Path(write_to) if write_to else None,
            max_slowdown=max_slowdown,
            gpus_per_rank=gpus_per_rank,
            model=model,
        )

    return Following(schedule, parts)


def stages_of(schedule: Any) -> list[Any]:
    """The stages of this rank. BadSpec where it is no schedule that we know."""
    found = getattr(schedule, "_stages", None) or [getattr(schedule, "_stage", None)]
    names = ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk", "stage_index", "submod")
    if not all(hasattr(stage, name) for stage in found for name in names) or not hasattr(schedule, "step"):
        raise BadSpec(f"{type(schedule).__name__} is no schedule of torch.distributed.pipelining as of version 2.13")
    return list(found)


def inject(schedules: ModuleType) -> None:
    """Follow every schedule of ``torch.distributed.pipelining.schedules`` from its first step on (``core/at_import``).

    For ``joulewise plan profile``: does nothing where the environment does not ask for a profile.
    """
    if PROFILE not in os.environ:
        return
    for name in _SINGLE_OR_SEVERAL:
        kind = getattr(schedules, name)
        kind.step = _followed(kind.step)


def _followed(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _FOLLOWED not in self.__dict__ and getattr(self, "_has_backward", True):
            follow(self)
            return self.step(*args, **kwargs)  # now its own
        return plain(self, *args, **kwargs)

    return step
