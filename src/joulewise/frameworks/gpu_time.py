"""When the GPU has done a step, on the machine's monotonic clock, without ever waiting for it.

A training script runs ahead of its GPU: when it returns from a step, the step has been launched, not done. A CUDA event
recorded there is passed by the GPU when the step is done, and can be asked about later. Events tell time differences
only, as milliseconds in single precision, so each is compared with an *anchor*: an event on a stream of its own, where
nothing is queued, which is passed at once, at a moment between two looks at the host's clock. Anchors are renewed
every second, because the GPU's clock drifts against the host's by some 10 ppm, and because a float of
milliseconds is good to 0.1 µs over a second and to 8 µs over a minute.

Where streams share one queue (``CUDA_DEVICE_MAX_CONNECTIONS=1``), an anchor is not passed at once. Then the last event
that was seen passed is the anchor, at the latest moment at which it can have been: differences stay exact, and the
moments themselves may be late by what the host looks late.

Nothing is recorded or asked while a CUDA graph is being captured: it would become part of the graph, or break it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

ANCHOR_S = 1.0
"""How long an anchor is used."""
BRACKET_S = 5e-4
"""Most seconds between the two looks at the host's clock: well below a step, well above the usual 20 µs."""
_RARELY_S = 64.0  # the longest pause between two tries for an anchor where none can be had


class _Anchor:
    """An event whose moment on the host's clock is known, or will be when the GPU has passed it."""

    __slots__ = ("event", "shared", "time_s")

    def __init__(self, event: Any, time_s: float | None, *, shared: bool = True) -> None:
        self.event, self.time_s = event, time_s
        self.shared = shared
        """Whether stamps may refer to the event, so that it must not be recorded again."""


class EventStamp:
    """The end of a step on the GPU."""

    __slots__ = ("_anchor", "_event", "_gpu_time", "_index")

    def __init__(self, gpu_time: GpuTime, index: int, event: Any, anchor: _Anchor) -> None:
        self._gpu_time, self._index, self._event, self._anchor = gpu_time, index, event, anchor

    def time_s(self) -> float | None:
        """When it was, on the machine's monotonic clock; None while the GPU has not got there. Not after a number."""
        if not self._event.query():
            return None
        return self._gpu_time._passed(self._index, self._event, self._anchor)


class GpuTime:
    """Stamps by the events of ``cuda``, which is ``torch.cuda`` (AMD's GPUs come under the same name).

    ``now_s`` is the machine's monotonic clock.
    """

    def __init__(self, cuda: Any, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._cuda, self._now_s = cuda, now_s
        self._anchors: dict[int, _Anchor] = {}
        self._latest: dict[int, _Anchor] = {}
        self._streams: dict[int, Any] = {}
        self._spare: list[Any] = []
        self._due_s: dict[int, float] = {}
        self._tries: dict[int, tuple[float, float]] = {}  # when to try for a fresh anchor again, and the pause so far

    @property
    def capturing(self) -> bool:
        """Whether a CUDA graph is being captured, so that nothing may be recorded or asked."""
        return bool(self._cuda.is_current_stream_capturing())

    def stamp(self, device: int | None = None) -> EventStamp:
        """An event after all that was launched on the current stream of ``device`` (None: the current one).

        Not to be called while ``capturing``.
        """
        index = self._cuda.current_device() if device is None else device
        self._renew(index)
        event = self._spare.pop() if self._spare else self._cuda.Event(enable_timing=True)
        event.record(self._cuda.current_stream(index))
        anchor = self._anchors.get(index)
        if anchor is None:  # the event itself, at a moment that is known when it is seen passed
            anchor = self._anchors[index] = _Anchor(event, None)
        return EventStamp(self, index, event, anchor)

    def _passed(self, index: int, event: Any, anchor: _Anchor) -> float:
        now_s, since_s = self._now_s(), float(anchor.event.elapsed_time(event)) / 1e3
        if anchor.time_s is None or anchor.time_s + since_s > now_s:
            anchor.time_s = now_s - since_s  # it cannot have been passed after it was seen so
        time_s = anchor.time_s + since_s
        before = self._latest.get(index)
        self._latest[index] = _Anchor(event, time_s, shared=event is anchor.event)
        if before is not None and not before.shared:
            self._spare.append(before.event)
        return time_s

    def _renew(self, index: int) -> None:
        """See to it that the anchor is a recent one: a fresh one, or else the last event that was seen passed."""
        now_s = self._now_s()
        if now_s < self._due_s.get(index, 0.0):
            return
        self._due_s[index] = now_s + ANCHOR_S
        fresh, (try_s, pause_s) = None, self._tries.get(index, (0.0, 0.0))
        if now_s >= try_s:
            fresh = self._bracketed(index)
            pause_s = 0.0 if fresh is not None else min(max(2.0 * pause_s, ANCHOR_S), _RARELY_S)
            self._tries[index] = now_s + pause_s, pause_s
        fresh = fresh or self._latest.get(index)
        if fresh is not None:
            fresh.shared = True
            self._anchors[index] = fresh

    def _bracketed(self, index: int) -> _Anchor | None:
        stream = self._streams.get(index)
        if stream is None:
            # Of high priority, and from a pool that scripts rarely use: where it is busy after all, we notice.
            stream = self._streams[index] = self._cuda.Stream(index, priority=-1)
        event = self._cuda.Event(enable_timing=True)
        before_s = self._now_s()
        event.record(stream)
        while not event.query():
            if self._now_s() > before_s + BRACKET_S:
                return None
        after_s = self._now_s()
        if after_s > before_s + BRACKET_S:
            return None
        return _Anchor(event, 0.5 * (before_s + after_s))
