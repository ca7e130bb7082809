"""A setting held on GPUs while a command runs: the lease behind ``joulewise run --set``.

Taken and applied before the command starts, or the command does not start; given back when it has ended. Should this
process be killed meanwhile, the daemon or the lease's guardian gives it back. Once the command runs nothing here
raises: what became of the setting is part of the result.
"""

from __future__ import annotations

from types import TracebackType

from joulewise.cli.gpus import OpenGpus
from joulewise.cli.summary import SetResult
from joulewise.core.errors import JoulewiseError, NoGpu
from joulewise.core.knob import Setting
from joulewise.device.lease import Applied, Ended, Lease


class Held:
    """``setting`` on the GPUs of ``found``. Use ``with``; ``end`` says what became of it.

    Entering raises what taking or applying a lease raises; nothing is set then.
    """

    def __init__(self, found: OpenGpus, setting: Setting, *, reason: str) -> None:
        if not found.gpus:
            raise NoGpu(f"--set needs a GPU to set: {found.why}; name one with --gpu")
        self._found, self._setting, self._reason = found, setting, reason
        self._lease: Lease | None = None
        self._applied: Applied | None = None
        self._said: list[str] = []
        self._ended: Ended | None = None

    def __enter__(self) -> Held:
        knobs = tuple(self._setting)
        self._lease = _lease(self._found, knobs, self._reason)
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
        self._give_back()

    def end(self) -> SetResult:
        """Give everything back and say how it went."""
        self._give_back()
        assert self._applied is not None, "entered before it ends"
        assert self._ended is not None
        return SetResult(self._setting, self._applied.effective, self._ended.restored, tuple(self._said))

    def _give_back(self) -> None:
        """Release the lease, once; whatever goes wrong is said, not raised."""
        if self._lease is None or self._ended is not None:
            return
        lost = not self._lease.alive
        try:
            self._said += [notice.says for notice in self._lease.notices()]
            self._ended = self._lease.release()
        except JoulewiseError as error:
            self._said.append(f"what was set may not have been given back: {error}")
            self._ended = Ended(str(error))
        if lost and self._ended.why and self._ended.why not in self._said:
            self._said.append(f"the lease ended before the command did: {self._ended.why}")


def _lease(found: OpenGpus, knobs: tuple[str, ...], reason: str) -> Lease:
    """A lease on the GPUs, by the road that leads there."""
    if found.simulated:
        # Our own simulator, which no daemon knows and which ends with us: nothing of it need be on disk.
        from joulewise.device.local import LocalLease
        from joulewise.device.nvml_controls import NvmlControls

        controls = [NvmlControls(gpu.info.uuid) for gpu in found.gpus]
        return LocalLease.take(controls, knobs, state=None, reason=reason)
    from joulewise.device.hold import hold

    return hold(found.gpus, knobs, reason=reason)
