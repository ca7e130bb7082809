"""Trials that a shell runs in a few hundredths of a second, on a recorded GPU: it prints what it has come to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from joulewise.cli.child import signals_held
from joulewise.cli.gpus import opened
from joulewise.cli.recur_terms import Target
from joulewise.cli.recur_trial import Terms
from joulewise.core.series import Platform, Recurring
from joulewise.store import MemoryJournal
from joulewise.tune.desk import Desk
from joulewise.tune.steady import Steady

JOB = Recurring("nightly", (8, 16, 32), 16, 8, "val_acc>=0.5")
PLATFORM = Platform("NVIDIA H200", 1, 700.0)
PATTERN = r"epoch (?P<epoch>\d+) val_acc=(?P<val_acc>\S+)"
WAITS = "while :; do sleep 0.02; done"


@contextmanager
def terms(recording: Path, job: Recurring = JOB, **more: Any) -> Iterator[Terms]:
    """What holds for every trial of ``job``, with its clocks left alone."""
    with signals_held() as mask, opened(f"replay:{recording}") as found:
        given = {"patterns": (PATTERN,), "interval_s": 0.02, "grace_s": 10.0, **more}
        yield Terms(job, Target.of(job.target), found, mask, None, **given)


def desk(kind: type[Desk] = Desk, job: Recurring = JOB) -> Steady:
    """A desk of ``job`` that has told nobody anything yet."""
    made = Steady(kind(MemoryJournal(), stream="series/nightly"))
    made.register(job)
    return made


def tells(*values: object) -> str:
    """A shell's words for epochs 1, 2, … that came to these values."""
    return "; ".join(f"echo epoch {epoch} val_acc={value}" for epoch, value in enumerate(values, start=1))
