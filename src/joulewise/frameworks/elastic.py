"""``joulewise.elastic``: two lines make a training script one that can be stopped at any time and go on elsewhere.

    job = joulewise.elastic("checkpoints", {"model": model, "optimizer": optimizer})   # takes up what was saved
    for step in job.steps(10_000):                                                     # from where that was
        train_one(step)

It saves every ``every_s`` seconds and at the end, writes down how far it is (``cluster/progress``), and obeys two
signals at the next step boundary: SIGUSR1 saves and pauses, so that a scheduler can end the job and start it with
another number of GPUs; SIGTERM saves and exits with 143. Without any scheduler it is plain checkpointing.

What it is not: a change of what the script computes. How a global batch is split over ``job.world`` is the script's.
It prints nothing; what goes wrong with a checkpoint is a warning of the logger "joulewise", and training goes on.

Plain Python from 3.9 on, standard library only: it runs in whatever Python the job has.
"""

# ruff: noqa: PTH103 (pathlib is slow to load)

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

from joulewise.cluster import progress as progress_file
from joulewise.cluster.progress import Progress
from joulewise.core.errors import BadSpec, NotKept
from joulewise.frameworks import hooks
from joulewise.frameworks.elastic_files import Checkpoints
from joulewise.frameworks.elastic_ranks import Agree, Ranks, visible_gpus
from joulewise.frameworks.elastic_state import Parts, parts

_GO_ON, _SAVE, _PAUSE, _STOP = range(4)  # by urgency: ranks agree on the highest
_WRITTEN_EVERY_S = 1.0
_LOOK_S = 0.02
_log = logging.getLogger("joulewise")


def elastic(
    checkpoint: str | os.PathLike[str],
    state: Any,
    *,
    every_s: float = 600.0,
    pause_s: float = 120.0,
    world: int | None = None,
    agree: Agree | None = None,
    trusted: bool = False,
) -> Elastic:
    """Make this script elastic; ``state`` is brought to where an earlier start saved it in the folder ``checkpoint``.

    ``state``: an object with ``state_dict`` and ``load_state_dict``, as PyTorch's have; or ``{"save": …, "load": …}``,
    two functions, of which the first gives what the second takes; or a mapping of names to such. It is written by rank
    0 and loaded by every rank, so the folder must be one that all of them see.

    ``every_s`` seconds lie between two saves, ``pause_s`` are waited after SIGUSR1 before going on if nobody ended us.
    ``world`` is what ``job.world`` and the progress file say; default: ranks, or the visible GPUs of a single one.

    Several ranks stop at the same step where they can talk: through torch.distributed (initialise it first; one number
    is reduced a step), or through ``agree``, which gives the highest of all ranks' numbers. Else each one decides alone
    at its own next boundary, and a checkpoint is what rank 0 had at its.

    Signals are heard only if this is called in the main thread. NotKept where the folder cannot be used, BadSpec for a
    state that is none, or a checkpoint that is not of this state.
    """
    return Elastic(
        os.fspath(checkpoint),
        parts(state),
        every_s=every_s,
        pause_s=pause_s,
        world=world,
        agree=agree,
        trusted=trusted,
    )


class Elastic:
    """A script that can be stopped and go on; made by ``elastic``.

    ``start_step``: steps that earlier starts had done and saved; ``starts`` counts them all, this one included.
    """

    def __init__(
        self,
        folder: str,
        parts: Parts,
        *,
        every_s: float,
        pause_s: float,
        world: int | None,
        agree: Agree | None,
        trusted: bool,
    ) -> None:
        if not every_s > 0 or not pause_s >= 0:
            raise BadSpec(f"every_s={every_s:g} must be above 0, and pause_s={pause_s:g} not below it")
        self._folder, self._parts, self._every_s, self._pause_s = folder, parts, every_s, pause_s
        self._agree = agree
        self._ranks = Ranks.here(agree)
        self._world = world
        self._files = Checkpoints(folder, trusted=trusted)
        self._count: int | None = None
        # Two flags, each set by its signal and cleared (never the stop) by the loop: one would lose what comes between.
        self._asked_pause = self._asked_stop = False
        self._pid = os.getpid()
        self._before: dict[int, Any] = {}
        self._warned: set[str] = set()
        self._started = False
        self._listen()  # before anything that takes long: by default these signals kill
        try:
            self.start_step, self.starts = self._taken_up()
        except BaseException:
            self._put_back()
            raise
        self._step = self._saved_step = self._tried_step = self.start_step
        self._saved_at_s = self._written_at_s = time.monotonic()
        self._write()

    @property
    def rank(self) -> int:
        """Which rank this is; rank 0 saves."""
        return self._ranks.rank

    @property
    def world(self) -> int:
        """GPUs or ranks now: what the script splits its global batch over."""
        return self._world or (self._ranks.count if self._ranks.count > 1 else visible_gpus())

    @property
    def saved_step(self) -> int:
        """Steps in the last good checkpoint that this process knows of."""
        return self._saved_step

    def steps(self, count: int | None = None) -> Iterator[int]:
        """The numbers of the steps that are left, up to ``count`` in all (None: for ever). One loop a script.

        At each boundary it is saved if due, and asked for or told to stop. SystemExit(143) on SIGTERM. Signal handlers
        are put back when the loop ends, however it does.
        """
        if self._started:
            raise BadSpec("steps() was called twice; a script has one loop over its steps")
        self._started, self._count = True, count
        if self._ranks.agree is None:
            self._ranks = Ranks.here(self._agree)  # torch.distributed may have been initialised since
        try:
            self._check_together()
            self._write()
            while True:
                self._boundary()
                if count is not None and self._step >= count:
                    break
                yield self._step
                self._step += 1
            self.save()
            self._write()
        finally:
            self._put_back()

    def save(self) -> bool:
        """Save now, if anything was done since the last time; whether all that was done is saved, as far as this rank
        knows. Ranks that can talk must all call it: state that is spread over them is gathered, and rank 0 writes."""
        self._saved_at_s = time.monotonic()
        if self._tried_step == self._step:
            return self._saved_step == self._step
        self._tried_step = self._step
        if self._ranks.rank != 0:
            if self._ranks.agree is not None:
                self._state()
            self._saved_step = self._step
            return True
        hooks.pause("checkpoint")
        try:
            self._files.write(self._step, {"step": self._step, "state": self._state()})
        except OSError as fault:
            self._warn(
                "save",
                f"checkpoint in {self._folder} could not be written ({fault.strerror or fault}); "
                f"training goes on, and step {self._saved_step} is the last that is saved",
            )
            return False
        finally:
            hooks.resume()
        self._warned.discard("save")
        self._saved_step = self._step
        return True

    def _state(self) -> dict[str, Any]:
        return {name: save() for name, (save, _) in self._parts.items()}

    # Boundaries.

    def _boundary(self) -> None:
        due = self._ranks.rank == 0 and time.monotonic() - self._saved_at_s >= self._every_s
        own = _STOP if self._asked_stop else _PAUSE if self._asked_pause else _SAVE if due else _GO_ON
        wanted = self._ranks.highest(own)
        if wanted == _SAVE:
            self.save()
        elif wanted == _PAUSE:
            self._pause()
        elif wanted == _STOP:
            self._stop()
        if time.monotonic() - self._written_at_s >= _WRITTEN_EVERY_S:
            self._write()

    def _pause(self) -> None:
        """Save, say so, and stand still: whoever asked will end us. If nobody does, go on."""
        self.save()
        self._write(paused=True)
        hooks.pause("paused")
        until_s = time.monotonic() + self._pause_s
        while time.monotonic() < until_s and not self._asked_stop:
            time.sleep(_LOOK_S)
        hooks.resume()
        self._asked_pause = False  # also what was asked meanwhile: that was this pause
        if self._asked_stop:  # not agreed upon: what stands still is saved, and may stop alone
            self._stop()
        self._saved_at_s = time.monotonic()
        self._write()

    def _stop(self) -> None:
        self.save()
        self._write()
        before = self._before.get(signal.SIGTERM)
        self._put_back()
        if callable(before):
            before(signal.SIGTERM, None)
        raise SystemExit(128 + signal.SIGTERM)

    def _check_together(self) -> None:
        """All ranks go on from the same step, or none does."""
        highest, lowest = self._ranks.highest(self._step), -self._ranks.highest(-self._step)
        if highest != lowest:
            raise BadSpec(
                f"rank {self._ranks.rank} goes on from step {self._step}, but others from {lowest} to {highest}; "
                f"every rank must see the same folder {self._folder}"
            )

    # What was, and what is written.

    def _taken_up(self) -> tuple[int, int]:
        """Bring the state to where it was; steps done, and how many starts this makes."""
        try:
            os.makedirs(self._folder, exist_ok=True)
        except OSError as fault:
            raise NotKept(f"checkpoints cannot be kept in {self._folder}: {fault.strerror}") from None
        if self._ranks.rank == 0:
            if not os.access(self._folder, os.W_OK | os.X_OK):
                raise NotKept(f"checkpoints cannot be kept in {self._folder}: it may not be written to")
            self._files.tidy()
        step, kept, damaged = self._files.newest()
        for line in damaged:
            self._warn(line, f"{line}; going on from step {step}")
        if kept is not None:
            self._restore(kept, step)
        last = progress_file.read(self._folder)
        return step, last.starts + 1 if last is not None else 1

    def _restore(self, kept: Any, step: int) -> None:
        state = kept.get("state") if isinstance(kept, dict) else None
        if not isinstance(state, dict) or set(state) != set(self._parts):
            has = ", ".join(sorted(state)) if isinstance(state, dict) else "something else"
            raise BadSpec(
                f"the checkpoint of step {step} in {self._folder} holds {has}; this script's state is "
                f"{', '.join(sorted(self._parts))}; use another folder"
            )
        for name, (_, load) in self._parts.items():
            load(state[name])

    def _write(self, *, paused: bool = False) -> None:
        self._written_at_s = time.monotonic()
        if self._ranks.rank != 0:
            return
        now = Progress(self._step, self._count, self._saved_step, time.time(), self.world, paused, self.starts)
        try:
            progress_file.write(self._folder, now)
        except OSError as fault:
            self._warn("progress", f"progress in {self._folder} could not be written ({fault.strerror})")

    def _warn(self, about: str, line: str) -> None:
        """Once, until it works again."""
        if about not in self._warned:
            self._warned.add(about)
            _log.warning("%s", line)

    # Signals.

    def _listen(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            _log.debug("joulewise.elastic was not called in the main thread: signals are not heard")
            return
        for number in (signal.SIGUSR1, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._heard)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:  # a child of the script, such as a loader of data: it has no steps
            if number == signal.SIGTERM:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return
        if number == signal.SIGTERM:
            self._asked_stop = True  # whoever listened before has a turn after the save
            return
        self._asked_pause = True
        before = self._before.get(number)
        if callable(before):
            before(number, frame)

    def _put_back(self) -> None:
        before, self._before = self._before, {}
        with contextlib.suppress(ValueError):  # the loop ends in another thread
            for number, handler in before.items():
                # By default SIGUSR1 kills: one that comes too late must not make a failure of a job that is done.
                late = number == signal.SIGUSR1 and handler is signal.SIG_DFL
                signal.signal(number, signal.SIG_IGN if late or handler is None else handler)
