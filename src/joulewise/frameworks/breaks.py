"""Sees when a PyTorch job does something else than steps: it evaluates, saves a checkpoint, or compiles.

Seen cheaply, by wrapping three things that jobs do around such breaks: ``Module.train`` (which ``eval`` calls),
``torch.save``, and the start and end of a compilation. What comes in most iterations is part of the iteration (a
teacher put into ``eval`` each time, the rollouts of reinforcement learning), and is let be. Not seen are evaluation
under ``no_grad`` alone and checkpoints not written by ``torch.save``; the ruler leaves out steps that are far too long.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from types import ModuleType
from typing import Any

from joulewise.frameworks import hooks

EVALUATION, CHECKPOINT, COMPILATION = "evaluation", "checkpoint", "compile"
_MEMORY = 1 / 16  # weight of the last iteration in how common a break is
_COMMON, _RARE, _NEVER = 0.5, 0.25, 0.001


class Breaks:
    """The breaks of this process, and how common each kind is. Never raises."""

    def __init__(self) -> None:
        self._share = dict.fromkeys((EVALUATION, CHECKPOINT, COMPILATION), 0.0)
        self._common: set[str] = set()
        self._seen: set[str] = set()
        self._now = ""
        self._calm = True  # there has been no break for long: nothing to keep count of

    def begin(self, why: str) -> None:
        """Something else than steps begins. Of several that overlap, the first counts."""
        marker = hooks.marker()
        if marker is None or not marker.marking:  # nothing before the first step is of interest
            return
        self._seen.add(why)
        if why not in self._common and not marker.paused:
            self._now = why
            marker.pause(why)

    def end(self, why: str) -> None:
        """It is over."""
        if self._now == why:
            self._now = ""
            marker = hooks.marker()
            if marker is not None:
                marker.resume()

    def step(self) -> None:
        """An iteration ends: whatever break is still open is over."""
        if self._now:
            self.end(self._now)
        if self._calm and not self._seen:
            return
        for why, share in self._share.items():
            share += _MEMORY * ((why in self._seen) - share)
            self._share[why] = share
            if share > _COMMON:
                self._common.add(why)
            elif share < _RARE:
                self._common.discard(why)
        self._seen.clear()
        self._calm = max(self._share.values()) < _NEVER


def equip(torch: ModuleType, breaks: Breaks) -> None:
    """Watch evaluations and checkpoints of ``torch``. Names that a script has taken from torch before stay as is."""
    _watch_evaluation(torch, breaks)
    _watch_save(torch, breaks)


def _watch_evaluation(torch: ModuleType, breaks: Breaks) -> None:
    original = torch.nn.Module.train
    compiling = torch.compiler.is_compiling
    depth = threading.local()
    evaluated: list[weakref.ref[Any]] = []

    @functools.wraps(original)
    def train(self: Any, mode: bool = True) -> Any:
        # Compiled code gets the original, so that nothing of ours is traced.
        if compiling() or getattr(depth, "inside", False):
            return original(self, mode)
        depth.inside = True  # a module hands it on to its parts
        try:
            was = self.training
            if was and not mode:
                breaks.begin(EVALUATION)
                evaluated[:] = [weakref.ref(self)]
            elif mode and evaluated and evaluated[0]() is self:
                breaks.end(EVALUATION)
                evaluated.clear()
        except Exception:
            evaluated.clear()
        try:
            return original(self, mode)
        finally:
            depth.inside = False

    torch.nn.Module.train = train


def _watch_save(torch: ModuleType, breaks: Breaks) -> None:
    original = torch.save

    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        breaks.begin(CHECKPOINT)
        try:
            return original(*args, **kwargs)
        finally:
            breaks.end(CHECKPOINT)

    torch.save = save  # type: ignore[attr-defined]


def watch_compilation(breaks: Breaks) -> None:
    """Watch compilations, once there is a compiler; call it now and then, as the list is emptied by its ``reset``."""
    callbacks = sys.modules.get("torch._dynamo.callback")
    handler = getattr(callbacks, "callback_handler", None)
    if handler is None:
        return
    begin, end = _compile_callbacks(breaks)
    starts, ends = getattr(handler, "start_callbacks", None), getattr(handler, "end_callbacks", None)
    if isinstance(starts, list) and isinstance(ends, list) and begin not in starts:
        starts.append(begin)
        ends.append(end)


@functools.lru_cache(maxsize=1)
def _compile_callbacks(breaks: Breaks) -> tuple[Any, Any]:
    def begin(*_: Any) -> None:
        breaks.begin(COMPILATION)

    def end(*_: Any) -> None:
        breaks.end(COMPILATION)

    return begin, end
