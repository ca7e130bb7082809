"""The compiled solver behind ``plan.flow``: arrays in, arrays out, its error codes as our errors.

The other side is native/flow/flow.h. Loaded by ctypes at the first use, not at import. Calls are short (``BUDGET``),
so Ctrl-C is heard between them.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Sequence
from ctypes import POINTER, Structure, byref, c_double, c_int, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from joulewise.core.errors import BadSpec, MissingPart
from joulewise.native import library_path
from joulewise.plan.options import Floats, Ints, WholeHull

LIBRARY = "libjoulewise-flow.so"
BUDGET = 20_000_000
"""Arcs looked at in one call: about 0.1 s."""
SNAPSHOTS = 128
"""States kept of a run: reading a plan then costs at most 1/64 of the run, for 128 × 8 bytes a node and arc."""

_MORE = 1
_BAD_INDEX, _BAD_HULL, _CYCLE, _RANGE, _NO_MEMORY, _BROKEN, _LATE = range(-1, -8, -1)


class OutOfUnits(ArithmeticError):
    """A sum would leave 62 bits in these units; coarser ones may do."""


class _Hulls(Structure):
    _fields_ = (
        ("count", c_int32),
        ("start", POINTER(c_int32)),
        ("duration", POINTER(c_int64)),
        ("slope", POINTER(c_int64)),
        ("energy", POINTER(c_int64)),
    )


class _Dag(Structure):
    _fields_ = (
        ("operations", c_int32),
        ("hull", POINTER(c_int32)),
        ("edges", c_int32),
        ("before", POINTER(c_int32)),
        ("after", POINTER(c_int32)),
        ("lag", POINTER(c_int64)),
    )


class _Vertices(Structure):
    _fields_ = (
        ("count", c_int32),
        ("time", POINTER(c_int64)),
        ("energy", POINTER(c_int64)),
        ("slope", POINTER(c_int64)),
    )


class _Options(Structure):
    _fields_ = (
        ("count", c_int32),
        ("start", POINTER(c_int32)),
        ("duration", POINTER(c_int64)),
        ("energy", POINTER(c_double)),
        ("setting", POINTER(c_int32)),
    )


class _Switch(Structure):
    _fields_ = (("duration", c_int64), ("energy", c_double), ("previous", POINTER(c_int32)))


@dataclass(frozen=True, slots=True)
class Lists:
    """Options one list after the other, each fastest first: ``start`` has one more than there are lists."""

    start: NDArray[np.int32]
    duration: Ints
    energy_j: Floats
    setting: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class WholeDag:
    """Operations and edges in whole units: every operation's hull by index; edges as (before, after, lag)."""

    hull: NDArray[np.int32]
    before: NDArray[np.int32]
    after: NDArray[np.int32]
    lag: Ints


@dataclass(frozen=True, slots=True)
class WholePlan:
    """When every operation may start and must have ended, and what a unit of time is worth to it (slope units)."""

    time: int
    start: Ints
    end: Ints
    worth: Ints


class Flow:
    """One run of the solver. Vertices come slowest first; ``advance`` all of them before asking for plans."""

    def __init__(self, hulls: Sequence[WholeHull], dag: WholeDag, *, exact: Sequence[WholeHull] | None = None) -> None:
        self._library = library()
        self._operations = len(dag.hull)
        handle = c_void_p()
        # The arrays must outlive the call; the library copies them.
        given, true = _Packed(hulls), _Packed(exact) if exact is not None else None
        check(
            self._library.jw_flow_new(
                byref(given.view), byref(true.view) if true else None, byref(_dag(dag)), SNAPSHOTS, byref(handle)
            )
        )
        self._handle = handle
        self._alone = threading.Lock()  # ctypes lets other threads run, and the library serves one at a time
        weakref.finalize(self, self._library.jw_flow_free, handle)

    def run(self) -> None:
        """Find every vertex."""
        with self._alone:
            while check(self._library.jw_flow_advance(self._handle, BUDGET)) == _MORE:
                pass

    def vertices(self) -> tuple[Ints, Ints, Ints]:
        """Time, energy, and the slope towards the vertex before, of every vertex found; slowest first."""
        view = _Vertices()
        check(self._library.jw_flow_vertices(self._handle, byref(view)))
        time, energy, slope = (
            np.ctypeslib.as_array(array, shape=(view.count,)).copy() for array in (view.time, view.energy, view.slope)
        )
        return time, energy, slope

    def plan(self, time: int) -> WholePlan:
        """A plan of least energy for a time from the fastest vertex to the slowest."""
        start, end, worth = (np.empty(self._operations, np.int64) for _ in range(3))
        with self._alone:
            check(self._library.jw_flow_plan(self._handle, time, _int64(start), _int64(end), _int64(worth)))
        return WholePlan(time, start, end, worth)

    @property
    def memory_bytes(self) -> int:
        """Held by the compiled part."""
        return int(self._library.jw_flow_bytes(self._handle))


def fit(lists: Lists, dag: WholeDag, end: Ints) -> NDArray[np.int32] | None:
    """First choices, each ending by its planned end; None where a planned end is too early for any."""
    choice = np.zeros(len(dag.hull), np.int32)
    code = library().jw_flow_fit(byref(_options(lists)), byref(_dag(dag)), _int64(end), _int32(choice))
    return None if code == _LATE else (check(code), choice)[1]


def repair(
    lists: Lists,
    dag: WholeDag,
    choice: NDArray[np.int32],
    deadline: int,
    previous: NDArray[np.int32] | None,
    switch_duration: int,
    switch_j: float,
) -> NDArray[np.int32] | None:
    """Better choices that still end by the deadline; None where the given ones do not. See ``plan.rounding``."""
    switch = _Switch(switch_duration, switch_j, None if previous is None else _int32(previous))
    better = choice.copy()
    code = library().jw_flow_repair(byref(_options(lists)), byref(_dag(dag)), byref(switch), deadline, _int32(better))
    if code == _LATE:
        return None
    check(code)
    return better


@cache
def library() -> Any:
    """The compiled library. Raises MissingPart where it was not built."""
    try:
        loaded = ctypes.CDLL(str(library_path(LIBRARY)))
    except (FileNotFoundError, OSError) as error:
        raise MissingPart(f"the frontier solver cannot be loaded: {error}") from error
    signatures: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "jw_flow_new": (c_int, (c_void_p, c_void_p, c_void_p, c_int32, c_void_p)),
        "jw_flow_free": (None, (c_void_p,)),
        "jw_flow_advance": (c_int, (c_void_p, c_int64)),
        "jw_flow_vertices": (c_int, (c_void_p, c_void_p)),
        "jw_flow_plan": (c_int, (c_void_p, c_int64, *(POINTER(c_int64),) * 3)),
        "jw_flow_bytes": (c_int64, (c_void_p,)),
        "jw_flow_fit": (c_int, (c_void_p, c_void_p, POINTER(c_int64), POINTER(c_int32))),
        "jw_flow_repair": (c_int, (c_void_p, c_void_p, c_void_p, c_int64, POINTER(c_int32))),
    }
    for name, (result, arguments) in signatures.items():
        function: Callable[..., Any] = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments  # type: ignore[attr-defined]
    return loaded


def check(code: int) -> int:
    """The code, if it is no error; else the error."""
    if code >= 0:
        return code
    if code == _RANGE:
        raise OutOfUnits
    if code == _NO_MEMORY:
        raise MemoryError("the frontier solver ran out of memory; a slope grid needs less")
    words = {
        _BAD_INDEX: "an edge or a vertex names an operation that does not exist",
        _BAD_HULL: "durations must be 0 or more and fall, slopes must rise",
        _CYCLE: "operations wait for each other in a circle",
    }
    if code in words:
        raise BadSpec(f"the frontier cannot be found: {words[code]}")
    raise AssertionError(f"the frontier solver broke an invariant of its own (code {code}); please report it")


class _Packed:
    """Hulls one after the other; the array of slopes has a place for every point."""

    def __init__(self, hulls: Sequence[WholeHull]) -> None:
        self.start = np.concatenate([[0], np.cumsum([len(hull.duration) for hull in hulls])]).astype(np.int32)
        self.duration = np.concatenate([hull.duration for hull in hulls])
        self.slope = np.concatenate([np.append(hull.slope, 0) for hull in hulls])
        self.energy = np.concatenate([hull.energy for hull in hulls])
        self.view = _Hulls(
            len(hulls), _int32(self.start), _int64(self.duration), _int64(self.slope), _int64(self.energy)
        )


def _dag(dag: WholeDag) -> _Dag:
    edges = len(dag.before)
    return _Dag(len(dag.hull), _int32(dag.hull), edges, _int32(dag.before), _int32(dag.after), _int64(dag.lag))


def _options(lists: Lists) -> _Options:
    energy = lists.energy_j.ctypes.data_as(POINTER(c_double))
    return _Options(len(lists.start) - 1, _int32(lists.start), _int64(lists.duration), energy, _int32(lists.setting))


def _int32(array: NDArray[np.int32]) -> Any:
    assert array.dtype == np.int32
    assert array.flags.c_contiguous
    return array.ctypes.data_as(POINTER(c_int32))


def _int64(array: Ints) -> Any:
    assert array.dtype == np.int64
    assert array.flags.c_contiguous
    return array.ctypes.data_as(POINTER(c_int64))
