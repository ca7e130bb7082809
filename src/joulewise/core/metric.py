"""Metrics: what a training says of how well it does, epoch by epoch, and the file in which it says so.

A process appends one line of JSON for each thing it tells to a file of its own in a directory that the environment
names: ``{"time": 12.5, "clock": 0, "epoch": 3, "values": {"val_acc": 0.81}}``. In the same directory it asks whether to
stop: whoever reads the metrics leaves a file there that says yes, and another that says how much it has read, so that
the question right after an epoch gets that epoch's answer.

The job's side (``frameworks/metric``) runs in whatever Python (3.9 or later) the user has, so this module is plain and
needs nothing but the standard library. The reader is ``monitor/metrics``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import NamedTuple

from joulewise.core.marks import Clock

ENVIRONMENT = "JOULEWISE_METRICS"
"""Names the directory; a process without it tells nothing."""
SUFFIX = ".metrics"
ASKS = ".asks"
"""Beside a process's metrics: it asks whether to stop, and will."""
ANSWERED = ".answered"
"""Beside a process's metrics: how many bytes of them have been read and thought about."""
STOP = "stop"
"""Its being there means: yes, stop."""
LONGEST_LINE = 65_536
"""Bytes. What is longer was written by nobody we know."""


class Metric(NamedTuple):
    """What was told at one moment."""

    time_s: float
    epoch: float
    """Epochs done by then; 0 when training begins. A part of one where the job evaluates within epochs."""
    values: Mapping[str, float]
    """Name → value, which may be no number (NaN) or infinite."""
    clock: Clock = Clock.HOST


def line(metric: Metric) -> bytes:
    """One line, with its end."""
    fields = {"time": metric.time_s, "clock": int(metric.clock), "epoch": metric.epoch, "values": dict(metric.values)}
    return json.dumps(fields).encode() + b"\n"


def parsed(text: bytes) -> Metric | None:
    """What ``line`` wrote; None for anything else."""
    try:
        fields = json.loads(text)
        metric = Metric(
            float(fields["time"]),
            float(fields["epoch"]),
            {str(name): float(value) for name, value in fields["values"].items()},
            Clock(fields["clock"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return metric if math.isfinite(metric.time_s) and 0 <= metric.epoch < math.inf else None
