"""The live view of ``joulewise run --live``: a line per GPU under the command's own output, and the joules so far."""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from types import TracebackType
from typing import Protocol, TextIO

from rich.text import Text

from joulewise.cli.console import Console
from joulewise.cli.look import line, name, sights
from joulewise.cli.panel import Panel
from joulewise.core.block import Rung
from joulewise.core.units import format_duration, format_energy
from joulewise.report.claim import percent
from joulewise.report.history import sparkline
from joulewise.report.meter import Meter
from joulewise.report.words import doing, named, plainly
from joulewise.tune.status import Status

_MOST_LINES = 8
_TUNED_LINES = 2
_UNITS = {Rung.STEPS: "step", Rung.PERIOD: "period", Rung.ACTIVITY: "unit of activity"}
_LEAST_CURVE = 8
_FIELDS = len("412 / 700 W  1785 MHz   97 %  61 °C  power cap")


class Tunes(Protocol):
    """What tunes the command; ``cli.tuning.Tuning``."""

    def status(self) -> Status | None:
        """How it stands; None while it has not begun."""
        ...

    @property
    def waiting(self) -> str:
        """What is waited for until then."""
        ...


def tuned_lines(tuning: Tunes) -> list[Text]:
    """How tuning stands: what is in force, how the pace is known, the saving so far; then why."""
    status = tuning.status()
    if status is None:
        return [Text("tune  " + tuning.waiting, style="dim")]
    setting = named(status.setting)
    first = Text("tune  ")
    first.append(setting, style="bold cyan" if status.setting else "")
    what = doing(status.role, verified=status.verified, default=not status.setting)
    first.append(f" ({what})" if what else "")
    pace = "" if status.unit_s is None else f"  {format_duration(status.unit_s)} a {_UNITS.get(status.rung, 'unit')}"
    first.append(pace or f"  {status.ruler}", style="dim")
    if status.phase:
        first.append(f"  {status.phase}", style="magenta")
    proof = status.proof
    if proof is not None and proof.energy is not None:
        so_far = f"  energy {percent(proof.energy.value, proof.energy.half, sign=True)}"
        if proof.time is not None:
            so_far += f", time {percent(proof.time.value, proof.time.half, sign=True)}"
        first.append(so_far, style="bold green" if proof.energy.high < 0 else "")
    return [first, Text("      " + plainly(status.note or status.why), style="yellow" if status.note else "dim")]


class LiveView:
    """Draws a meter at the bottom of a terminal. Use ``with``; call ``draw`` every ``refresh_s``."""

    refresh_s = 0.5

    def __init__(self, meter: Meter, stream: TextIO, tuning: Tunes | None = None) -> None:
        self._meter, self._tuning = meter, tuning
        tuned = _TUNED_LINES if tuning is not None else 0
        self._panel = Panel(stream, height=1 + min(_MOST_LINES, max(1, len(meter.gpus))) + tuned)
        self._console = Console(file=stream)

    def __enter__(self) -> LiveView:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._panel.close()

    def put_away(self) -> AbstractContextManager[None]:
        """Closed while the shell has the terminal."""
        return self._panel.put_away()

    def draw(self) -> None:
        """Show the present state; nothing where the terminal has gone."""
        with suppress(OSError):
            width = self._panel.width
            self._panel.draw([self._rendered(each, width) for each in self.lines(width)])

    def lines(self, width: int) -> list[Text]:
        """What is shown: a rule with the joules so far, then GPUs, then how tuning stands."""
        shown = sights(self._meter)
        names = max((len(f"{sight.info.index} {name(sight.info)}") for sight in shown), default=0)
        texts = [line(sight, name_width=names) for sight in shown]
        if len(texts) > _MOST_LINES:
            texts[_MOST_LINES - 1 :] = [Text(f"… and {len(shown) - _MOST_LINES + 1} more GPUs", style="dim")]
        # Reserved for the longest usual reason, so that curves do not jump when a clock is held back.
        used = max((len(text) for text in texts), default=0)
        room = width - max(used, names + 2 + _FIELDS) - 2
        if room >= _LEAST_CURVE:
            for text, series in zip(texts[:_MOST_LINES], self._meter.history.series, strict=False):
                text.pad_right(width - room - len(text))
                text.append(sparkline(series.power_w(), width=room, top=series.top_w()), style="green")
        return [self._rule(width), *texts, *(tuned_lines(self._tuning) if self._tuning is not None else ())]

    def _rule(self, width: int) -> Text:
        report = self._meter.so_far()
        said = ""
        if report is not None:
            energy = "no reading" if not report.gpus else format_energy(report.total.energy_j, report.total.error_j)
            said = f" {energy} in {format_duration(report.duration_s)} "
        left = "── joulewise "
        rule = Text(left, style="dim")
        rule.append("─" * max(2, width - len(left) - len(said) - 2))
        rule.append(said, style="bold not dim")
        return rule.append("──")

    def _rendered(self, text: Text, width: int) -> str:
        with self._console.capture() as captured:
            self._console.print(text, end="", no_wrap=True, overflow="ellipsis", width=width, crop=True)
        return captured.get()
