"""What is aimed at, said to the engine: each thing until it is so, what frees first.

What it is: the only place that starts, resizes, preempts and stops. Everything is said again after a while unless the
engine shows it, so that a command that was lost, or a scheduler that was, changes nothing in the end.
What it is not: what to say (``scheduler_acts.wanted``).
"""

from __future__ import annotations

from collections.abc import Callable

from joulewise.cluster.engine import DONE
from joulewise.cluster.scheduler_acts import Act, wanted
from joulewise.cluster.scheduler_sight import Sight
from joulewise.core.errors import BadSpec, EngineLost

# An act that has not come true is said again after so long: a resize takes seconds, a lost command must not take hours.
_SAY_AGAIN_S = 10.0


class Hands:
    """Remembers what was said, and when, only in order not to say it all the time."""

    def __init__(self, sight: Sight) -> None:
        self._sight = sight
        self._said: dict[str, tuple[str, int, Act, float]] = {}

    def said(self, name: str) -> int | None:
        """The version of a job's aim that was last said; None: none, or to another job of that name."""
        said = self._said.get(name)
        return said[1] if said is not None and said[0] == self._sight.book.jobs[name].id else None

    def led(self) -> None:
        """Everything has to be said again."""
        self._said.clear()

    def carry_out(self, now_s: float) -> None:
        """Say what is left to be said to the engine: first all that frees."""
        acts: list[tuple[int, int, str, Act]] = []
        for name, kept in self._sight.book.jobs.items():
            seen = self._sight.seen.get(name)
            if kept.over or seen is None or seen.state in DONE:
                self._said.pop(name, None)
                continue
            act = wanted(kept, seen)
            if act is None or kept.aim is None or name in self._sight.missing:
                continue
            said = self._said.get(name)
            if said is not None and said[:3] == (kept.id, kept.aim.version, act) and now_s - said[3] < _SAY_AGAIN_S:
                continue
            rank = {"stop": 0, "preempt": 1, "resize": 2, "start": 3}[act.what]
            acts.append((rank, kept.number, name, act))
        for _, _, name, act in sorted(acts, key=lambda each: each[:2]):
            if self._sight.lost:
                return
            self._say(now_s, name, act)

    def _say(self, now_s: float, name: str, act: Act) -> None:
        engine = self._sight.engine
        say: dict[str, Callable[[], None]] = {
            "start": lambda: engine.start(name, act.place),
            "resize": lambda: engine.resize(name, act.place),
            "preempt": lambda: engine.preempt(name),
            "stop": lambda: engine.stop(name, act.why),
        }
        kept = self._sight.book.jobs[name]
        assert kept.aim is not None
        try:
            self._sight.do(act.what, say[act.what])
        except EngineLost as lost:
            self._sight.lost = str(lost)
            return
        except BadSpec as fault:
            # The engine can never do this: what it was decided on has changed. Decide anew.
            self._sight.faults[f"job {name}"] = f"the engine would not {act.what} it: {fault}"
            if act.what in ("start", "resize"):
                self._sight.book.turn(now_s, name, "stopped")
                self._sight.call(now_s + self._sight.period_s)
        self._said[name] = (kept.id, kept.aim.version, act, now_s)
