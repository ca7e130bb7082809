"""A setting held on GPUs while a command runs: the lease behind ``joulewise run --set``.

Taken and applied before the command starts, or the command does not start; given back when it has ended. Should this
process be killed meanwhile, the daemon or the lease's guardian gives it back. Once the command runs nothing here
raises: what became of the setting is part of the result. A thread looks whether it is still in force, since a lease
may end before the command does, and a result must not be taken for one under a setting that had gone.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Final

from joulewise.cli.gpus import OpenGpus
from joulewise.cli.summary import SetResult
from joulewise.cli.usage import common_knobs
from joulewise.core.errors import JoulewiseError, NoGpu
from joulewise.core.knob import Setting
from joulewise.device.gpu import Gpu
from joulewise.device.job_lease import release_in_time
from joulewise.device.lease import Applied, Ended, Lease

LOOK_S: Final = 0.5
"""How finely the end of what was set is told; the daemon itself looks once a second."""
_UNDONE: Final = ("ended", "foreign", "reload")
"""Notices after which what was set is no longer all there."""
_LAST_LOOK_S: Final = 2.0  # for a look that is under way when the command ends; one at a driver that hangs is left


class Held:
    """``setting`` on the GPUs of ``found``. Use ``with``; ``begin`` and ``finish`` are the command's; then ``end``.

    Entering raises what taking or applying a lease raises; nothing is set then.
    """

    def __init__(self, found: OpenGpus, setting: Setting, *, reason: str) -> None:
        if not found.gpus:
            raise NoGpu(f"--set needs a GPU to set: {found.why}; name one with --gpu")
        self._found, self._setting, self._reason = found, setting, reason
        self._now = found.gpus[0].time.now_s
        self._lease: Lease | None = None
        self._applied: Applied | None = None
        self._said: list[str] = []
        self._ended: Ended | None = None
        self._began_s = self._until_s = 0.0
        self._early: str | None = None
        self._news: list[str] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._watch: threading.Thread | None = None

    def __enter__(self) -> Held:
        knobs = tuple(self._setting)
        self._lease = take(self._found, self._found.gpus, knobs, self._reason)
        try:
            self._applied = self._lease.apply(self._setting)
        except BaseException:
            self._give_back()
            raise
        self._said = list(dict.fromkeys((*self._lease.notes, *self._applied.notes)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._give_back()

    def begin(self) -> None:
        """The command starts now: watch."""
        self._began_s = self._until_s = self._now()
        self._watch = threading.Thread(target=self._keep_looking, name="watch of --set", daemon=True)
        self._watch.start()

    def news(self) -> list[str]:
        """What has happened to the setting since the last call, a line each."""
        with self._lock:
            news, self._news = self._news, []
        return news

    def finish(self) -> None:
        """The command has ended: what happens from now on is no concern of its."""
        self._stop.set()
        if self._watch is not None:
            self._watch.join(_LAST_LOOK_S)
            if not self._watch.is_alive():
                self._look()

    def end(self, duration_s: float) -> SetResult:
        """Give everything back and say how it went. ``duration_s``: how long the command ran."""
        self._give_back()
        assert self._applied is not None, "entered before it ends"
        assert self._ended is not None
        held_s = duration_s if self._early is None else min(duration_s, self._until_s - self._began_s)
        notes = tuple(self._said)
        return SetResult(
            self._setting, self._applied.effective, self._ended.restored, notes, held_s=held_s, ended_early=self._early
        )

    def _keep_looking(self) -> None:
        while not self._stop.wait(LOOK_S):
            self._look()

    def _look(self) -> None:
        """Take in what has happened; the moment of the last look at which all was well is how long it held for sure."""
        assert self._lease is not None
        now_s = self._now()
        try:
            notices = self._lease.notices()
            lost = [notice.says for notice in notices if notice.kind in _UNDONE]
            if not lost and self._early is None and not self._lease.alive:
                lost = [self._lease.release().why]
        except JoulewiseError as error:
            notices, lost = (), [str(error)]
        with self._lock:
            self._said += [notice.says for notice in notices if notice.kind not in _UNDONE]
            if self._early is not None:
                self._said += lost
            elif lost:
                self._early = lost[0]
                self._said += lost[1:]
                self._news.append(f"{_in_short(self._setting)} no longer in force: {lost[0]}")
            else:
                self._until_s = now_s

    def _give_back(self) -> None:
        """Release the lease, once; whatever goes wrong is said, not raised."""
        if self._lease is None or self._ended is not None:
            return
        try:
            self._ended = release_in_time(self._lease)
        except JoulewiseError as error:
            self._said.append(f"what was set may not have been given back: {error}")
            self._ended = Ended(str(error))


def _in_short(setting: Setting) -> str:
    """``"power_limit_w=500 is"``, as it was asked for."""
    return ",".join(f"{knob}={value:g}" for knob, value in setting.items()) + " is"


def take(found: OpenGpus, gpus: Sequence[Gpu], knobs: tuple[str, ...] | None, reason: str) -> Lease:
    """A lease on ``knobs`` (None: all that may be set) of some GPUs of ``found``, by the road that leads there. Raises
    what taking a lease raises."""
    if found.simulated:
        # Our own simulator, which no daemon knows and which ends with us: nothing of it need be on disk.
        from joulewise.device.local import LocalLease
        from joulewise.device.nvml_controls import NvmlControls

        controls = [NvmlControls(gpu.info.uuid) for gpu in gpus]
        return LocalLease.take(controls, knobs or common_knobs(gpus), state=None, reason=reason)
    from joulewise.device.hold import hold

    return hold(list(gpus), knobs, reason=reason)
