"""Follows the optimisers of an unchanged PyTorch script: each iteration of its training loop is a step.

An iteration ends with an optimiser's step, as PyTorch's own global hook tells: so micro-batches that accumulate
gradients are one step, and subclasses of ``torch.optim.Optimizer`` are all seen. Where several optimisers take turns,
one of them counts (``core/leader``). A step that a ``GradScaler`` skips is an iteration all the same, and so is the
replay of a CUDA graph that a step was captured in.

Not seen: optimisers that are no subclass of torch's; those of DeepSpeed's stage 3, which steps once a group of
parameters. Such jobs say ``joulewise.step()``.

Runs inside the script, called through ``core/at_import``; plain Python from 3.9 on. It never raises into the script.
"""

from __future__ import annotations

import functools
import sys
import weakref
from types import ModuleType
from typing import Any

from joulewise.core.leader import Leader
from joulewise.frameworks import hooks
from joulewise.frameworks.breaks import Breaks, equip, watch_compilation

WHO = "torch"
_NOW_AND_THEN = 16  # steps between two looks for a compiler


def follow(optim: ModuleType) -> None:
    """Mark the steps of every optimiser of ``optim`` (``torch.optim``) from now on, where that can be done."""
    module = sys.modules.get(optim.__name__ + ".optimizer")
    register = getattr(module, "register_optimizer_step_post_hook", None)
    if register is None or hooks.marker() is None:  # PyTorch before 2.1
        return
    iterations = Iterations()

    def after_step(optimizer: Any, *_: Any) -> None:
        iterations.after_step(optimizer)

    after_step._torchdynamo_disable = True  # type: ignore[attr-defined]  # a compiled step calls it, and does not trace it
    register(after_step)


class Iterations:
    """The iterations of this process."""

    def __init__(self) -> None:
        self.taken = 0
        """Optimiser steps so far, whether they count or not."""
        self._leader = Leader()
        self._breaks = Breaks()
        self._equipped = self._broken = False
        self._graphs: weakref.WeakKeyDictionary[Any, weakref.ref[Any]] = weakref.WeakKeyDictionary()
        self._captured: weakref.ref[Any] | None = None
        self._known: weakref.ref[Any] | None = None

    def after_step(self, optimizer: Any) -> None:
        """An optimiser has taken a step, or a scaler has skipped it."""
        self.taken += 1
        marker = hooks.marker()
        if self._broken or marker is None:
            return
        try:
            if self.taken % _NOW_AND_THEN == 1:
                self._equip()
            if not self._leader.leads(optimizer):
                return
            if self._known is None or self._known() is not optimizer:
                self._look_at(optimizer, marker)
            self._breaks.step()
            if not marker.step(1.0, WHO, hooks.INJECTED):
                self._note_captured(optimizer)
        except Exception:
            self._broken = True

    def _equip(self) -> None:
        """Hook what else tells of iterations: once, now that all of torch is there, but for the compiler."""
        watch_compilation(self._breaks)
        if self._equipped:
            return
        self._equipped = True
        torch = sys.modules["torch"]
        scaler = getattr(sys.modules.get("torch.amp.grad_scaler"), "GradScaler", None)
        if scaler is not None:
            self._watch_scaler(scaler)
        graph = getattr(getattr(torch, "cuda", None), "CUDAGraph", None)
        if graph is not None:
            self._watch_graphs(graph)
        if hasattr(torch, "nn") and hasattr(torch, "compiler") and hasattr(torch, "save"):
            equip(torch, self._breaks)

    def _watch_scaler(self, scaler: Any) -> None:
        original = scaler.step

        @functools.wraps(original)
        def step(scaling: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            before = self.taken
            result = original(scaling, optimizer, *args, **kwargs)
            if self.taken == before:
                self.after_step(optimizer)
            return result

        scaler.step = step

    def _watch_graphs(self, graph: Any) -> None:
        begin, replay = graph.capture_begin, graph.replay

        @functools.wraps(begin)
        def capture_begin(captured: Any, *args: Any, **kwargs: Any) -> Any:
            self._captured = weakref.ref(captured)
            return begin(captured, *args, **kwargs)

        @functools.wraps(replay)
        def replay_and_tell(replayed: Any) -> Any:
            result = replay(replayed)
            stepped = self._graphs.get(replayed)
            optimizer = stepped() if stepped is not None else None
            if optimizer is not None:
                self.after_step(optimizer)
            return result

        graph.capture_begin, graph.replay = capture_begin, replay_and_tell

    def _note_captured(self, optimizer: Any) -> None:
        """A step went into the CUDA graph that is being captured: whenever that is replayed, it is done."""
        captured = self._captured() if self._captured is not None else None
        if captured is not None:
            self._graphs.setdefault(captured, weakref.ref(optimizer))

    def _look_at(self, optimizer: Any, marker: hooks.Marker) -> None:
        """On which GPU this optimiser's steps are done."""
        self._known = weakref.ref(optimizer)
        groups = getattr(optimizer, "param_groups", None)
        device = groups[0]["params"][0].device if groups and groups[0]["params"] else None
        marker.device = device.index if device is not None and device.type == "cuda" else None
