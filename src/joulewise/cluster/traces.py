"""Jobs that a cluster has seen, from a CSV file: plain records, sorted by submission.

What it is: one reader for ElasticFlow's and Pollux' files, Philly's, and any CSV with our own columns (the fields of
``TraceJob``; ``submitted_s``, ``gpus`` and one of ``duration_s`` and ``model`` must be there, the others may be). A
name that ends in ``.gz`` is read as compressed. Whose file it is shows from its header. What it is not: what a job
does on a GPU (that is a model's or a bench's knowledge), or a queue.

A submission is a number of seconds, or a date (``2017-10-09 07:01:55``): then seconds since the file's first one.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TextIO, TypeVar

from joulewise.core import input_files
from joulewise.core.errors import BadSpec
from joulewise.core.words import first_of, short


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job as it was recorded; None where a trace does not say.

    ``duration_s`` is its run time on the ``gpus`` it asked for, without waiting. ``batch`` is global, over all GPUs.
    ``deadline_s`` is on the same clock as ``submitted_s``. ``tenant`` is whose it is: a user or a virtual cluster.
    ``weight``: what a second of its completion time counts, against 1 of the others.
    """

    name: str
    submitted_s: float
    gpus: int
    duration_s: float | None = None
    model: str | None = None
    batch: int | None = None
    iterations: float | None = None
    deadline_s: float | None = None
    tenant: str = ""
    weight: float = 1.0


OWN = {field.name: field.name for field in fields(TraceJob)}
"""Our own columns."""
_ELASTICFLOW = {
    "name": "job_id",
    "submitted_s": "submission_time",
    "gpus": "num_gpu",
    "duration_s": "duration",
    "model": "model_name",
    "batch": "batch_size",
    "iterations": "num_iteration",
    "deadline_s": "deadline",
}
_PHILLY = {"submitted_s": "timestamp", "gpus": "num_gpus", "duration_s": "duration", "tenant": "cluster"}
_POLLUX = {"name": "name", "submitted_s": "time", "gpus": "num_replicas", "model": "application", "batch": "batch_size"}
_FORMATS: tuple[Mapping[str, str], ...] = (OWN, _ELASTICFLOW, _PHILLY, _POLLUX)

_Value = TypeVar("_Value")


_MOST_BYTES = 64 * input_files.MIB
"""Of a trace, decompressed: more than a million jobs. The largest public ones have some 100,000."""
_BYTES_A_JOB = 64  # what a line has; in memory a job takes some 1 kB, however short its line is
_WAY_OUT = "give a CSV file, compressed with gzip or not"


def read_trace(path: Path, *, tenant: str | None = None) -> tuple[TraceJob, ...]:
    """All jobs of a file, or one tenant's, by submission (those submitted together: as in the file).

    BadSpec where the file cannot be read, lacks a column, holds a value that makes no sense, a name twice, or no job;
    it names file, line and column.
    """
    most = input_files.limit(_MOST_BYTES) // _BYTES_A_JOB
    try:
        with input_files.opened_text(path, _MOST_BYTES, way_out=_WAY_OUT) as file:
            jobs = [_job(row) for row in islice(_rows(path, file), most + 1)]
    except csv.Error as error:
        raise BadSpec(f"{path} cannot be read as a trace ({error}); {_WAY_OUT}") from error
    if len(jobs) > most:
        raise BadSpec(f"{path} holds more than {most} jobs; take a part of it, or set {input_files.VARIABLE} higher")
    if jobs and _dated(jobs[0][1]):
        first_s = min(job.submitted_s for job, _ in jobs)
        jobs = [(_moved(job, -first_s), row) for job, row in jobs]
    _refuse_mixed_and_repeated(jobs)
    found = [job for job, _ in jobs if tenant is None or job.tenant == tenant]
    if not found:
        raise BadSpec(f"{path} holds no job{_of_whom(tenant, (job.tenant for job, _ in jobs))}")
    return tuple(sorted(found, key=lambda job: job.submitted_s))


@dataclass(frozen=True, slots=True)
class _Row:
    """One line of a file, by our names of its columns."""

    path: Path
    line: int
    columns: Mapping[str, str]
    cells: Mapping[str, str]

    def text(self, name: str) -> str | None:
        """A cell; None where the file has no such column or nothing in it."""
        return self.cells.get(self.columns.get(name, ""), "") or None

    def read(self, name: str, convert: Callable[[str], _Value], wanted: str) -> _Value | None:
        """A cell, converted; None where there is none."""
        text = self.text(name)
        if text is None:
            return None
        try:
            return convert(text)
        except ValueError as error:
            raise self.bad(
                name, f"is {short(text)!r}, which is not {wanted}; correct it or take the line out"
            ) from error

    def need(self, name: str, value: _Value | None) -> _Value:
        """A value that every job must have."""
        if value is None:
            raise self.bad(name, "is empty; fill it in or take the line out")
        return value

    def bad(self, name: str, why: str) -> BadSpec:
        """What is wrong with a cell, to be raised."""
        return BadSpec(f"{self.path}, line {self.line}: column {self.columns.get(name, name)!r} {why}")


def _rows(path: Path, file: TextIO) -> Iterable[_Row]:
    reader = csv.DictReader(file, restval="")
    header = [name.strip() for name in reader.fieldnames or ()]
    reader.fieldnames = header
    columns = _format(path, header)
    for cells in reader:
        kept = {name: cells[name].strip() for name in columns.values() if name in cells}
        yield _Row(path, reader.line_num, columns, kept)


def _format(path: Path, header: list[str]) -> Mapping[str, str]:
    """Our name → the file's, for the first format whose needed columns are all there."""
    missing = [(_missing(columns, header), columns) for columns in _FORMATS]
    for lacks, columns in missing:
        if not lacks:
            return columns
    # The format that the file comes nearest to; our own where it resembles none.
    lacks, columns = min(missing, key=lambda pair: (-len(set(pair[1].values()) & set(header)), len(pair[0])))
    needed = " and ".join(repr(name) for name in lacks)
    raise BadSpec(
        f"{path}, line 1: there is no column {needed}; the columns are {first_of(header)}; "
        f"add it, or use the columns {', '.join(OWN)}"
    )


def _missing(columns: Mapping[str, str], header: list[str]) -> list[str]:
    lacks = [columns[name] for name in ("submitted_s", "gpus") if columns[name] not in header]
    sizes = [columns[name] for name in ("duration_s", "model") if name in columns]
    return lacks if any(name in header for name in sizes) else [*lacks, sizes[0]]


def _job(row: _Row) -> tuple[TraceJob, _Row]:
    model = row.text("model")
    duration_s = row.read("duration_s", _positive, "a number of seconds above 0")
    if model is None and duration_s is None:
        raise row.bad("duration_s", "is empty and no model is named; fill one in or take the line out")
    tenant = row.text("tenant") or ""
    job = TraceJob(
        name=row.text("name") or f"{tenant or 'job'}-{row.line}",
        submitted_s=row.need("submitted_s", row.read("submitted_s", _moment, "a number of seconds or a date")),
        gpus=row.need("gpus", row.read("gpus", _count, "a number of GPUs, 1 or more")),
        duration_s=duration_s,
        model=model,
        batch=row.read("batch", _count, "a batch size, 1 or more"),
        iterations=row.read("iterations", _positive, "a number above 0"),
        deadline_s=row.read("deadline_s", _moment, "a number of seconds or a date"),
        tenant=tenant,
        weight=row.read("weight", _positive, "a number above 0") or 1.0,
    )
    return job, row


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise ValueError(text)
    return value


def _count(text: str) -> int:
    value = _positive(text)
    if value != int(value):
        raise ValueError(text)
    return int(value)


def _moment(text: str) -> float:
    """Seconds of a number, or of a date since 1970; where a date names no zone all are taken to be of one."""
    try:
        value = float(text)
    except ValueError:
        date = datetime.fromisoformat(text)
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def _dated(row: _Row, name: str = "submitted_s") -> bool:
    try:
        float(row.text(name) or "0")
    except ValueError:
        return True
    return False


def _moved(job: TraceJob, by_s: float) -> TraceJob:
    values = {name: getattr(job, name) for name in OWN}
    deadline_s = None if job.deadline_s is None else job.deadline_s + by_s
    return TraceJob(**values | {"submitted_s": job.submitted_s + by_s, "deadline_s": deadline_s})


def _refuse_mixed_and_repeated(jobs: list[tuple[TraceJob, _Row]]) -> None:
    seen: dict[str, int] = {}
    for job, row in jobs:
        for name in ("submitted_s", "deadline_s"):
            if row.text(name) is not None and _dated(row, name) != _dated(jobs[0][1]):
                raise row.bad(name, "mixes dates and seconds; use one of them in the whole file")
        if job.name in seen:
            raise row.bad("name", f"is {short(job.name)!r}, as in line {seen[job.name]}; give every job its own name")
        seen[job.name] = row.line


def _of_whom(tenant: str | None, tenants: Iterable[str]) -> str:
    if tenant is None:
        return " below its header; add one line a job"
    return f" of tenant {tenant!r}; there are {first_of(sorted(set(tenants)))}"
