"""What a PyTorch profiler (Kineto) trace of one rank shows: what ran where and when, what started it, what waited.

On a GPU the spans are kernels, copies and collectives on their streams, each with the time of its launch on the host.
A trace without any GPU shows operators on threads and gloo's collectives instead: they stand in for kernels, so that a
job can be looked at on a laptop. Times are seconds since the trace's first event. What it is not: a judgement; which
span waited for which other is said in ``plan/xray_dag``.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from joulewise.core.errors import BadSpec
from joulewise.core.input_files import MIB, VARIABLE, limit
from joulewise.plan.trace_events import MOST_BYTES, Event, TraceFile
from joulewise.plan.trace_kinds import Kind, is_work, kind_of

_US = 1e-6
_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_CALLS = ("cuda_runtime", "cuda_driver", "hip_runtime")
_WAIT = ("stream", "correlation", "wait_on_stream", "wait_on_cuda_event_record_corr_id")
_STEP = "ProfilerStep#"
_BYTES_AN_EVENT = 256  # the profiler writes more of each; each takes 340 in memory, however little is written
_COLLECTIVES = ("gloo:", "mpi:", "ucc:")
_LEAST_BLOCK_S = 20e-6  # a synchronising call shorter than this found the GPU done: it waited for nothing


@dataclass(frozen=True, slots=True)
class Span:
    """One kernel, copy, collective or operator."""

    name: str
    kind: Kind
    start_s: float
    end_s: float
    stream: int
    launched_s: float | None = None
    """When the host asked for it; None where the trace does not say."""
    correlation: int = -1
    """Number of the launching call, rising in the order of calls; -1: not said."""
    group: str = ""
    """The ranks that a collective joins, as the trace writes them."""

    @property
    def duration_s(self) -> float:
        """How long it ran."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class Mark:
    """One ``ProfilerStep#``, on the host."""

    number: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class StreamWait:
    """What was launched on ``stream`` after call ``wait`` waits for what ``on_stream`` had got before call ``record``.

    Only traces recorded with ``enable_cuda_sync_events`` say so.
    """

    stream: int
    wait: int
    on_stream: int
    record: int


@dataclass(frozen=True, slots=True)
class Lane:
    """One GPU's spans by start; or the threads of a process without one."""

    device: int
    spans: tuple[Span, ...]
    waits: tuple[StreamWait, ...] = ()
    waits_recorded: bool = False
    """Whether the profiler was asked for waits between streams; there may be none."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One file: one process of a job."""

    path: Path
    rank: int | None
    world: int | None
    gpu: str | None
    """As the driver calls it; None: no GPU in the trace."""
    lanes: tuple[Lane, ...]
    marks: tuple[Mark, ...] = ()
    blocks: tuple[tuple[float, float], ...] = ()
    """When the host waited for its GPU: begin and end of each synchronising call."""

    @property
    def on_cpu(self) -> bool:
        """Whether operators stand in for kernels."""
        return self.gpu is None


@dataclass(frozen=True, slots=True)
class _Kernel:
    """Something that ran on a GPU, whose launch may stand further on in the file. Times in microseconds."""

    name: str
    kind: Kind
    start: float
    end: float
    device: int
    stream: int
    correlation: int
    group: str

    @classmethod
    def of(cls, name: str, category: str, start: float, duration: float, event: Event, args: dict[str, Any]) -> _Kernel:
        return cls(
            name,
            kind_of(name, category),
            start,
            start + duration,
            device=int(args["device"] if "device" in args else event.get("pid") or 0),
            stream=int(args["stream"] if "stream" in args else event.get("tid") or 0),
            correlation=int(args.get("correlation", -1)),
            group=str(args.get("Process Group Ranks", args.get("Process Group Name", ""))),
        )


@dataclass(slots=True)
class _Seen:
    """What the walk through the file gathers. Times in the file's microseconds."""

    kernels: list[_Kernel] = field(default_factory=list)
    operators: dict[Any, list[tuple[float, float, str]]] = field(default_factory=lambda: defaultdict(list))
    called: dict[int, float] = field(default_factory=dict)
    marks: list[tuple[int, float, float]] = field(default_factory=list)
    blocks: list[tuple[float, float]] = field(default_factory=list)
    waits: list[tuple[int, StreamWait]] = field(default_factory=list)
    waits_recorded: bool = False
    kept: int = 0
    """Events of which something is remembered."""

    def add(self, event: Event) -> None:
        if event.get("ph") != "X":
            return
        category, name = str(event.get("cat", "")).lower(), str(event.get("name", ""))
        start, duration = float(event["ts"]), float(event.get("dur", 0.0))
        if not (math.isfinite(start) and 0.0 <= duration < math.inf):
            raise ValueError(f"it begins at {start:g} and lasts {duration:g} µs")
        args: dict[str, Any] = dict(event.get("args") or {})
        if category in _ON_GPU:
            self.kernels.append(_Kernel.of(name, category, start, duration, event, args))
        elif category in _CALLS:
            if "correlation" in args:
                self.called[int(args["correlation"])] = start
            blocking = "Synchronize" in name or (name.startswith("cudaMemcpy") and "Async" not in name)
            if blocking and duration * _US >= _LEAST_BLOCK_S:
                self.blocks.append((start, start + duration))
        elif category == "cuda_sync":
            self.waits_recorded = True
            stream, call, on_stream, record = (int(args.get(key, -1)) for key in _WAIT)
            wait = StreamWait(stream, call, on_stream, record)
            if "Wait Event" in name and wait.on_stream >= 0 and wait.record >= 0:
                self.waits.append((int(args.get("device", 0)), wait))
        elif category in ("user_annotation", "cpu_op"):
            number = name.removeprefix(_STEP)
            if number != name and number.isdigit():
                self.marks.append((int(number), start, start + duration))
            elif category == "cpu_op" or name.startswith(_COLLECTIVES):
                self.operators[event.get("tid")].append((start, start + duration, name))
        else:
            return
        self.kept += 1


def read(path: Path) -> Trace:
    """The trace in ``path``. BadSpec: it cannot be read, is truncated, is none, or shows nothing that ran."""
    file, seen = TraceFile(path), _Seen()
    most = limit(MOST_BYTES) // _BYTES_AN_EVENT
    for event in file.events():
        if seen.kept > most:
            raise BadSpec(
                f"{path} shows more than {most} kernels, calls and operators; record fewer steps, or set {VARIABLE} "
                f"above {limit(MOST_BYTES) // MIB} to read it all"
            )
        try:
            seen.add(event)
        except (KeyError, TypeError, ValueError) as error:
            why = f"it has no {error}" if isinstance(error, KeyError) else error
            raise BadSpec(f"{path} is damaged at the event {str(event)[:80]}: {why}; record it again") from error
    head = file.head
    ranks = head.get("distributedInfo")
    ranks = ranks if isinstance(ranks, dict) else {}
    lanes = _gpu_lanes(seen) if seen.kernels else _cpu_lanes(seen)
    if not lanes:
        raise BadSpec(
            f"{path} shows no kernel and no operator that ran; record it with "
            "torch.profiler.profile(activities=[CPU, CUDA]) around some training steps"
        )
    origin = min(span.start_s for lane in lanes for span in lane.spans)
    origin = min([origin, *(mark[1] * _US for mark in seen.marks)])
    return Trace(
        path=path,
        rank=_whole(ranks.get("rank")),
        world=_whole(ranks.get("world_size")),
        gpu=_gpu_name(head, lanes) if seen.kernels else None,
        lanes=tuple(_shifted(lane, origin) for lane in lanes),
        marks=tuple(Mark(n, a * _US - origin, b * _US - origin) for n, a, b in sorted(seen.marks, key=lambda m: m[1])),
        blocks=tuple((a * _US - origin, b * _US - origin) for a, b in sorted(seen.blocks)),
    )


def _gpu_lanes(seen: _Seen) -> list[Lane]:
    spans: dict[int, list[Span]] = defaultdict(list)
    for kernel in seen.kernels:
        launched = seen.called.get(kernel.correlation)
        spans[kernel.device].append(
            Span(
                name=kernel.name,
                kind=kernel.kind,
                start_s=kernel.start * _US,
                end_s=kernel.end * _US,
                stream=kernel.stream,
                launched_s=None if launched is None else min(launched, kernel.start) * _US,
                correlation=kernel.correlation,
                group=kernel.group,
            )
        )
    return [
        Lane(
            device,
            tuple(sorted(found, key=_by_start)),
            tuple(wait for at, wait in seen.waits if at == device),
            seen.waits_recorded,
        )
        for device, found in sorted(spans.items())
    ]


def _cpu_lanes(seen: _Seen) -> list[Lane]:
    """One lane of all threads: what operators do themselves, and the collectives of gloo's threads."""
    spans: list[Span] = []
    begun: list[float] = []  # when operators asked for collectives
    for thread, (_, operators) in enumerate(sorted(seen.operators.items(), key=lambda item: str(item[0]))):
        begun += [start * _US for start, _, name in operators if name.startswith("c10d::")]
        for start, end, name in _own(operators):
            if end > start and is_work(name):
                spans.append(Span(name, kind_of(name, "cpu_op"), start * _US, end * _US, thread))
    begun.sort()
    spans = [_begun(span, begun) if span.kind is Kind.COMMUNICATION else span for span in spans]
    return [Lane(0, tuple(sorted(spans, key=_by_start)))] if spans else []


def _own(operators: list[tuple[float, float, str]]) -> Iterator[tuple[float, float, str]]:
    """The stretches of one thread in which each operator was the innermost; a collective has all that is within."""
    at = 0.0
    stack: list[tuple[float, str]] = []  # end and name of what encloses the present
    for start, end, name in sorted(operators, key=lambda operator: (operator[0], -operator[1])):
        while stack and stack[-1][0] <= start:
            yield at, stack[-1][0], stack[-1][1]
            at = max(at, stack.pop()[0])
        if stack and stack[-1][1].startswith(_COLLECTIVES):
            continue
        if stack:
            yield at, start, stack[-1][1]
        at = start
        stack.append((end, name))
    while stack:
        yield at, stack[-1][0], stack[-1][1]
        at = max(at, stack.pop()[0])


def _begun(span: Span, begun: list[float]) -> Span:
    """A collective with the time of the last call before it."""
    place = bisect_right(begun, span.start_s)
    return replace(span, launched_s=begun[place - 1]) if place else span


def _shifted(lane: Lane, origin_s: float) -> Lane:
    moved = (
        replace(
            span,
            start_s=span.start_s - origin_s,
            end_s=span.end_s - origin_s,
            launched_s=None if span.launched_s is None else span.launched_s - origin_s,
        )
        for span in lane.spans
    )
    return replace(lane, spans=tuple(moved))


def _gpu_name(head: dict[str, Any], lanes: Iterable[Lane]) -> str:
    """What the driver calls the first GPU of the trace; empty where the file does not say."""
    wanted = {lane.device for lane in lanes}
    for device in head.get("deviceProperties") or ():
        if isinstance(device, dict) and device.get("id") in wanted:
            return str(device.get("name", ""))
    return ""


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _by_start(span: Span) -> tuple[float, float]:
    return (span.start_s, span.end_s)
