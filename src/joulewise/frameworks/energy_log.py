"""``EnergyLog``: joules next to the loss, in whatever a training script writes its curves to.

``wandb`` and ``tensorboard`` beside this make one for their writers; any function that takes numbers and a step will
do. Four curves, of all GPUs of this job on this node:

==========================  =====================================================================
``energy/total_j``          joules since the log began
``energy/total_error_j``    one standard error of that, from sampling and the sensors' timing
``energy/power_w``          mean power since the point before
``energy/step_j``           joules a step since the point before
==========================  =====================================================================

The GPUs are looked at by a thread of its own, some seconds apart; a step only hands over what is there, in well under
a microsecond when nothing is. Nothing is raised into training and nothing printed: where nothing can be measured or
written, ``trouble`` says why. Of several ranks on a node, local rank 0 logs for all. It measures; it tunes nothing.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Self

from joulewise.core.errors import GpuLost, JoulewiseError
from joulewise.frameworks.job_gpus import job_gpus

if TYPE_CHECKING:
    from joulewise.core.knob import Setting
    from joulewise.core.measurement import Measurement
    from joulewise.device.gpu import Gpu
    from joulewise.monitor.report import Report
    from joulewise.monitor.window import Monitor, Window

Write = Callable[[Mapping[str, float], int | None], None]
"""Takes values by name, and the step that they are of; None: of now."""

LEAST_S = 1.0
"""Between two points. The counters of eight GPUs take 28 ms to read on some nodes."""
_LEAST_PASSED_S = 0.9
"""Counters tick ten times a second: over a shorter time than this a mean power says little."""
_log = logging.getLogger("joulewise")


class EnergyLog:
    """Logs energy through ``write`` about every ``every_s`` seconds. Use ``with``, or ``begin`` and ``close``.

    ``gpu`` names GPUs as everywhere (``nvml:0-3``); None: this job's own. ``gpus`` hands them over instead.
    ValueError for ``every_s`` below 1.
    """

    def __init__(
        self,
        write: Write,
        *,
        gpu: str | None = None,
        every_s: float = 10.0,
        gpus: Sequence[Gpu] | None = None,
    ) -> None:
        if not LEAST_S <= every_s < math.inf:
            raise ValueError(f"every_s={every_s} must be {LEAST_S:g} or more; 10 is usual")
        self.trouble: str | None = None
        """Why nothing, or not all, is logged; None while all is well."""
        self.report: Report | None = None
        """What was measured in all, after ``close``; None before, and where nothing was."""
        self._write, self._gpu, self._gpus, self._every_s = write, gpu, gpus, every_s
        self._monitor: Monitor | None = None
        self._window: Window | None = None
        self._steps = 0
        self._before = (0.0, 0.0, 0)  # seconds, joules and steps at the point before
        self._fresh: dict[str, float] | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> Self:
        """Begin to measure. A second call does nothing, and neither does one on another rank than the node's first."""
        from joulewise.monitor.owner import local_rank

        if self._window is not None:
            return self
        if local_rank() != 0:
            self.trouble = f"local rank 0 logs for local rank {local_rank()}"
            return self
        try:
            from joulewise.monitor.window import Monitor

            self._monitor = Monitor(job_gpus(self._gpu) if self._gpus is None else self._gpus)
            self._window = self._monitor.window("training").begin()
        except JoulewiseError as error:
            self._give_up(f"no energy is logged: {error}")
            return self
        self._stop.clear()
        self._thread = threading.Thread(target=self._watch, name="joulewise energy log", daemon=True)
        self._thread.start()
        return self

    def step(self, step: int | None = None) -> None:
        """A step is done; ``step`` is its number, where the script counts. Writes if there is a new point."""
        self._steps += 1
        if self._fresh is not None:
            fresh, self._fresh = self._fresh, None
            self._hand_over(fresh, step)

    def close(self) -> None:
        """End measuring and write the last point. Idempotent."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(self._every_s)
            self._thread = None
        if self._window is None or self._monitor is None or self.report is not None:
            return
        try:
            self.report = self._window.end()
        except GpuLost:  # the report says so, GPU by GPU
            self.report = self._window.report
        self._monitor.close()
        if (values := self._point(self.report)) is not None:
            self._hand_over(values, None)

    def __enter__(self) -> Self:
        return self.begin()

    def __exit__(self, *_: object) -> None:
        self.close()

    def measure(self) -> None:
        """Look at the GPUs now; the next ``step`` writes what was found. The log's own thread does this by itself."""
        if self._window is not None and self._window.open:
            self._fresh = self._point(self._window.so_far()) or self._fresh

    def _watch(self) -> None:
        while not self._stop.wait(self._every_s):
            try:
                self.measure()
            except Exception as error:
                self._give_up(f"energy is no longer logged: {error}")
                return

    def _point(self, report: Report) -> dict[str, float] | None:
        """The values of a report; None where no GPU could be measured."""
        if not report.gpus:
            self._give_up(f"no energy is logged: {'; '.join(dict.fromkeys(report.missing.values()))}")
            return None
        total: Measurement[Setting] = report.total
        steps = self._steps
        before_s, before_j, before_steps = self._before
        values = {"energy/total_j": total.energy_j, "energy/total_error_j": total.error_j}
        passed_s, spent_j = report.duration_s - before_s, total.energy_j - before_j
        if passed_s >= _LEAST_PASSED_S and spent_j > 0:
            self._before = (report.duration_s, total.energy_j, steps)
            values["energy/power_w"] = spent_j / passed_s
            if steps > before_steps:
                values["energy/step_j"] = spent_j / (steps - before_steps)
        return values

    def _hand_over(self, values: Mapping[str, float], step: int | None) -> None:
        try:
            self._write(values, step)
        except Exception as error:  # whatever the writer's package raises, training goes on
            self._give_up(f"energy could not be written: {type(error).__name__}: {error}")

    def _give_up(self, why: str) -> None:
        if self.trouble != why:
            self.trouble = why
            _log.warning("%s", why)
