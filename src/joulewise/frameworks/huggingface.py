"""``StepCallback`` for the Hugging Face ``Trainer``: tells steps, evaluation and saving, and the metrics of a recurring
job.

    from joulewise.frameworks.huggingface import StepCallback

    Trainer(..., callbacks=[StepCallback()])

Under ``joulewise recur run`` what an evaluation finds is told by its own names (``eval_loss``, ``eval_accuracy``), and
training ends after one that says so. The work of a step is its tokens where the trainer counts them
(``include_num_input_tokens_seen``), else 1. Without ``joulewise run`` around it, it costs some function calls a step.
With ``max_slowdown`` it tunes by itself (see ``joulewise.frameworks.torch.tuning``), until training ends or ``train()``
raises. Importing this module loads nothing; asking for ``StepCallback`` loads transformers.

``EnergyCallback(log)`` keeps an ``energy_log.EnergyLog`` while the trainer trains, so that joules stand next to the
loss:

    Trainer(..., callbacks=[EnergyCallback(joulewise.frameworks.wandb.EnergyLog())])
"""

# ruff: noqa: ARG002 (the framework hands them in)

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from joulewise.frameworks import hooks
from joulewise.frameworks.energy_log import EnergyLog
from joulewise.frameworks.metric import should_stop, tell

if TYPE_CHECKING:
    from joulewise.frameworks.torch import Job

WHO = "huggingface"

_HANDLER = "transformers.trainer_callback"
"""The module that calls callbacks for the trainer."""
_LOOK_S = 0.1
_MISSES = 5
"""So many looks in a row must miss the trainer on its thread's stack: one may come between two states of a generator,
which for that moment knows no caller."""


class Told:
    """The callback's methods, apart from the class of transformers that they go into."""

    def __init__(self, max_slowdown: float | None = None) -> None:
        self.job: Job | None = None
        """The loop that is tuned from here, once it trains: ``job.says`` tells how that stands, or ended."""
        self._max_slowdown = max_slowdown
        self._tuned: _Tuned | None = None
        self._tokens = 0.0
        self._by_tokens: bool | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Training begins; compilation and the first batch may take long."""
        if self._max_slowdown is not None:
            self._end_tuning()  # a trainer that tries again with a smaller batch size has told no end
            self._tuned = _Tuned(self._max_slowdown)
            self.job = self._tuned.job
        self._tokens, self._by_tokens = _tokens(state), None
        tell(state.epoch or 0, {})
        if (marker := hooks.marker()) is not None:
            marker.hello(WHO, hooks.CALLBACK)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Whatever was done besides steps is over."""
        hooks.resume()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An optimiser step is done, of one batch or of several that accumulate."""
        marker = hooks.marker()
        if marker is None:
            return
        before, self._tokens = self._tokens, _tokens(state)
        if self._by_tokens is None:  # one unit from the first step to the last
            self._by_tokens = self._tokens > before
        marker.step(max(0.0, self._tokens - before) if self._by_tokens else 1.0, WHO, hooks.CALLBACK)
        self._break_for(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An epoch is over; it may be evaluated and saved now."""
        self._break_for(control)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A batch of an evaluation."""
        hooks.pause("evaluation")

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An evaluation is over: its metrics, and whether to end here."""
        tell(state.epoch or 0, kwargs.get("metrics") or {})
        if should_stop():
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Training is over."""
        hooks.pause("end")
        self._end_tuning()

    def _end_tuning(self) -> None:
        if self._tuned is not None:
            self._tuned.end()

    def _break_for(self, control: Any) -> None:
        # The trainer evaluates first, then saves, before the next step begins.
        if control.should_evaluate:
            hooks.pause("evaluation")
        elif control.should_save:
            hooks.pause("checkpoint")


class TrainingFailed(Exception):
    """``train()`` was left without an end that callbacks were told of."""


class _Tuned:
    """``tuning`` while the trainer trains, made in ``on_train_begin``; ``end`` ends it, from any thread.

    The trainer tells its callbacks nothing where ``train()`` raises. So a thread looks whether the trainer's function
    that told of the beginning is still on the stack of its thread, and ends the tuning half a second after it is gone.
    """

    def __init__(self, max_slowdown: float) -> None:
        from joulewise.frameworks.torch import tuning

        self._tuning = tuning(max_slowdown=max_slowdown)
        self.job: Job = self._tuning.__enter__()
        self._lock = threading.Lock()
        self._over = threading.Event()
        frame = _trainers(sys._getframe(1))
        # Its id and no reference: tensors that a failed training has left must not live on through us. As long as it
        # runs no other frame has that id.
        watched = (id(frame), frame.f_code, threading.get_ident())
        if self.job.status is not None:
            threading.Thread(target=self._watch, args=watched, name="joulewise trainer", daemon=True).start()

    def end(self, failure: Exception | None = None) -> None:
        """Give back what was set, and say how it went. Idempotent."""
        with self._lock:
            if not self._over.is_set():
                self._over.set()
                self._tuning.__exit__(None if failure is None else type(failure), failure, None)

    def _watch(self, frame: int, code: CodeType, thread: int) -> None:
        missed = 0
        while not self._over.wait(_LOOK_S):
            missed = 0 if _runs(frame, code, thread) else missed + 1
            if missed >= _MISSES:
                self.end(TrainingFailed("the trainer has ended without telling so"))


def _trainers(frame: FrameType) -> FrameType:
    """The trainer's frame: the one that has called the handler of callbacks, or where there is none, the callback."""
    outside = [each for each in _stack(frame) if each.f_globals.get("__name__") != __name__]
    handlers = [place for place, each in enumerate(outside) if each.f_globals.get("__name__") == _HANDLER]
    if not handlers:
        return outside[0]
    return next(each for each in outside[handlers[0] :] if each.f_globals.get("__name__") != _HANDLER)


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    """``frame`` and those that called it."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _runs(frame: int, code: CodeType, thread: int) -> bool:
    return any(id(each) == frame and each.f_code is code for each in _stack(sys._current_frames().get(thread)))


class Logged:
    """The methods of ``EnergyCallback``, apart from the class of transformers that they go into."""

    def __init__(self, log: EnergyLog) -> None:
        self._log = log

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Training begins."""
        self._log.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An optimiser step is done."""
        self._log.step(state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Training is over."""
        self._log.close()


def _tokens(state: Any) -> float:
    return float(getattr(state, "num_input_tokens_seen", 0) or 0)


_PARTS = {"StepCallback": Told, "EnergyCallback": Logged}


def __getattr__(name: str) -> Any:
    if name not in _PARTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from transformers import TrainerCallback

    made = type(name, (_PARTS[name], TrainerCallback), {"__module__": __name__, "__doc__": __doc__})
    globals()[name] = made
    return made
