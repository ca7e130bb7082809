"""What runs inside a job: ``step``, ``phase``, ``pause`` and ``resume`` leave marks of its progress for the tuner.

Under ``joulewise run`` the environment names a directory, and marks go into a file there (``core/marks``); inside
``joulewise.frameworks.torch.tuning`` they go to the tuner in the same process; anywhere else they cost a function call
and do nothing. They never print, never raise, never wait, and change nothing that the job computes. How marks are made
is the business of ``marker``.
"""

from __future__ import annotations

import os

from joulewise.core.marks import ENVIRONMENT
from joulewise.frameworks.marker import CALLBACK, INJECTED, JOB, Marker, Sink

__all__ = ["CALLBACK", "INJECTED", "JOB", "Marker", "Sink", "marker", "pause", "phase", "resume", "send_to", "step"]


class _Phase:
    """A phase that has begun. As a context manager it ends with the block, and the one before goes on."""

    __slots__ = ("_before",)

    def __init__(self, before: str) -> None:
        self._before = before

    def __enter__(self) -> _Phase:
        return self

    def __exit__(self, *_: object) -> None:
        if _marker is not None:
            _marker.phase(self._before)


_NO_PHASE = _Phase("")


def marker() -> Marker | None:
    """What this process marks with; None where nobody asked for marks."""
    return _marker


def step(work: float = 1.0) -> None:
    """One step of the job's work is done, or launched on the GPU; ``work`` is how much it was, in any unit of yours.

    Call it once an iteration, always at the same place. Give ``work`` where steps differ (tokens, samples).
    """
    if _marker is not None:
        _marker.step(work, "joulewise.step", JOB)


def phase(name: str) -> _Phase:
    """From here on the job is in the phase ``name``: "rollout", "train". Each phase gets a setting of its own.

    Used as ``with phase("rollout"):`` the phase before goes on after the block.
    """
    if _marker is None:
        return _NO_PHASE
    before = _marker.phase_name
    _marker.phase(name)
    return _Phase(before)


def pause(why: str) -> None:
    """From here on the job does something that is no part of its steps: "evaluation", "checkpoint"."""
    if _marker is not None:
        _marker.pause(why)


def resume() -> None:
    """What ``pause`` began is over."""
    if _marker is not None:
        _marker.resume()


def send_to(sink: Sink | None) -> Marker | None:
    """Mark into ``sink`` from now on (None: as the environment says). Returns what marks now."""
    global _marker
    _marker = Marker(sink=sink) if sink is not None else _by_environment()
    return _marker


def _by_environment() -> Marker | None:
    directory = os.environ.get(ENVIRONMENT)
    return Marker(directory) if directory else None


def _after_fork() -> None:
    if _marker is not None:
        _marker.after_fork()


_marker = _by_environment()
os.register_at_fork(after_in_child=_after_fork)
