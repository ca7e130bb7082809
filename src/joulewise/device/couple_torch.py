"""Couples an unmodified PyTorch script with a virtual GPU: each optimiser step is one step of virtual work.

The script computes on the CPU whatever it computes; the virtual GPU does one training step of a library workload for
each of its optimiser steps, and the script waits for it. As with a real GPU the script runs one step ahead: it hands in
a step, then waits for the one before. So the GPU always has work, and the script's own time is hidden inside the wait,
as long as a real step is shorter than a virtual one; the simulator counts those that are not.

``environment`` prepares a command for it; ``couple`` runs inside the script, called through ``core/at_import``.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from joulewise.core import at_import
from joulewise.core.errors import JoulewiseError
from joulewise.core.leader import Leader
from joulewise.core.visible import visible
from joulewise.device.work import ENVIRONMENT, Link, current

LOAD_VARIABLE = "JOULEWISE_COUPLE_LOAD"
DEFAULT_LOAD = "transformer"


def environment(environ: Mapping[str, str], load: str = DEFAULT_LOAD) -> dict[str, str]:
    """``environ`` with what couples every Python process of a command that reads PYTHONPATH."""
    prepared = at_import.environment(environ, "torch.optim.optimizer", "joulewise.device.couple_torch:couple")
    return {**prepared, LOAD_VARIABLE: load}


def couple(optimizer_module: ModuleType) -> None:
    """Follow the steps of every optimizer of ``torch.optim`` from now on. Says why if that cannot be.

    Does nothing where the environment names no simulator: a script may have taken that away from what it starts.
    """
    if ENVIRONMENT not in os.environ:
        return
    register = getattr(optimizer_module, "register_optimizer_step_post_hook", None)
    if register is None:
        _say("this PyTorch has no global optimiser hooks; coupling needs version 2.1 or later")
        return
    coupling = Coupling(os.environ.get(LOAD_VARIABLE, DEFAULT_LOAD))
    register(coupling.after_step)
    atexit.register(coupling.finish)


class Coupling:
    """One process's steps on its virtual GPU. Never raises into the script; a simulator that ends ends it."""

    def __init__(self, load: str) -> None:
        self._load = load
        self._link: Link | None = None
        self._ahead: int | None = None
        self._leader = Leader()
        self._broken = False

    def after_step(self, optimizer: Any, *_: Any) -> None:
        """An optimizer has taken a step: hand in a virtual one, and wait for the one before."""
        if self._broken or _in_loader_worker() or not self._leader.leads(optimizer):
            return
        try:
            self._step()
        except JoulewiseError as error:
            self._broken = True
            _say(f"no longer coupled: {error}")
        except BaseException:
            self._hang_up()  # an interrupted wait leaves an answer on its way
            raise

    def finish(self) -> None:
        """Wait for the last step, as a script that uses a GPU does before it ends."""
        link, ahead, self._ahead = self._link, self._ahead, None
        if self._broken or ahead is None or link is None or link is not _same_process(link):
            return
        try:
            link.finish(ahead)
        except JoulewiseError:
            return

    def _step(self) -> None:
        link = current()
        if link is not self._link:  # the first step, or the first after a fork
            self._link, self._ahead = link, None
        mine = link.hello["mine"]
        if not mine:
            self._broken = True
            _say("no virtual GPU is this process's own; check CUDA_VISIBLE_DEVICES")
            return
        request = {"op": "work", "gpu": mine[0], "load": self._load, "wall_s": time.monotonic(), "ahead": True}
        before, self._ahead = self._ahead, link.send(request)
        if before is not None:
            link.finish(before)

    def _hang_up(self) -> None:
        if self._link is not None:
            self._link.close()
        self._link, self._ahead, self._broken = None, None, True


def _same_process(link: Link) -> Link | None:
    """``link`` if it is this process's; a forked child has dropped its parent's."""
    try:
        return link if current() is link else None
    except JoulewiseError:
        return None


def _in_loader_worker() -> bool:
    """Whether this is a worker of a DataLoader: a copy of the script that must not take its steps."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


def _say(message: str) -> None:
    print(visible(f"joulewise: {message}"), file=sys.stderr)
