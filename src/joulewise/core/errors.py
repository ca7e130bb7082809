"""Everything joulewise raises on purpose, as one tree. A class exists only if someone catches it differently.

::

    JoulewiseError
    ├── GpuError                 something about one GPU
    │   ├── NoGpu                the name matches no GPU, or there is none to use
    │   ├── GpuLost              it fell off the bus, or its driver or simulator went away
    │   ├── NotPermitted         the driver wants more rights than we have
    │   ├── Unsupported          this GPU or driver cannot do that
    │   ├── OutOfRange           the value is outside what the hardware or the site allows
    │   ├── LeaseTaken           someone else holds the lease on this GPU and knob
    │   ├── LeaseLost            our lease has ended: expired, revoked, or its daemon died
    │   ├── NotNow               not refused for good: too many writes, or a client asked for quiet
    │   ├── NotSaved             what was there cannot be kept safe, so nothing was written
    │   └── GpuStalled           the driver does not answer for this GPU; what was asked may yet happen
    ├── BadSpec                  a GPU specification, flag or file that we cannot understand
    │   ├── BadRecording         a recording that is corrupt or of another version
    │   └── BadMessage           a message to or from the daemon that breaks its protocol
    ├── NoReading                a measurement was asked for where there is nothing to measure with
    ├── WindowError              begin without end, an unknown or repeated window name
    ├── ModelError               a law that cannot be fitted to, or evaluated at, what was given
    ├── NoDaemon                 no daemon answers on its socket
    ├── NotKept                  the store cannot be read or written: disk full, no rights, damaged
    │   └── Conflict             somebody else was faster: what was to follow a certain event no longer would
    ├── EngineLost               a cluster's engine does not answer, or answers nonsense
    ├── Fenced                   another scheduler has taken over this cluster
    └── MissingPart              an optional part (extra, library, compiled piece) is not installed

A message is one line: what happened, the value, the limit, the way out.
"""

from __future__ import annotations

from joulewise.core.visible import visible


class JoulewiseError(Exception):
    """The root: catch it to catch everything that joulewise raises on purpose."""

    def __str__(self) -> str:
        """The message, its control characters written out: parts of it come from files and other machines."""
        return visible(super().__str__())


class GpuError(JoulewiseError):
    """Something about one GPU."""


class NoGpu(GpuError):
    """The name matches no GPU, or there is none to use."""


class GpuLost(GpuError):
    """The GPU fell off the bus, or its driver or simulator went away. Later calls will fail too."""


class NotPermitted(GpuError):
    """The driver, the daemon or a cluster's scheduler wants more rights than whoever asks has."""


class Unsupported(GpuError):
    """This GPU or driver cannot do what was asked."""


class OutOfRange(GpuError):
    """The value is outside what the hardware or the site allows."""


class LeaseTaken(GpuError):
    """Someone else holds the lease on this GPU and knob; the message names them and when it ends."""


class LeaseLost(GpuError):
    """Our lease has ended: expired, released, revoked, or its daemon died. What it set has been, or will be, undone."""


class NotNow(GpuError):
    """Not refused for good: too many writes, or a client asked for quiet. Try again after ``retry_s``."""

    def __init__(self, message: str, retry_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_s = retry_s


class NotSaved(GpuError):
    """What was there before cannot be kept safe (disk full, read only), so nothing was written.

    ``owed``: because something that was set before is to be undone first, and somebody has to see to it.
    """

    def __init__(self, message: str, *, owed: bool = False) -> None:
        super().__init__(message)
        self.owed = owed


class GpuStalled(GpuError):
    """The driver does not answer for this GPU. What was asked may yet happen; it will then be undone."""


class BadSpec(JoulewiseError):
    """A GPU specification, flag or file that we cannot understand."""


class BadRecording(BadSpec):
    """A recording that is corrupt or of another version; what precedes the fault can still be read."""


class BadMessage(BadSpec):
    """A message to or from the daemon that breaks its protocol: not JSON, too long, of another version."""


class NoReading(JoulewiseError):
    """A measurement was asked for where there is nothing to measure with."""


class WindowError(JoulewiseError):
    """A window was begun twice, or ended without having begun."""


class ModelError(JoulewiseError):
    """A law that cannot be fitted to, or evaluated at, what was given."""


class NoDaemon(JoulewiseError):
    """No daemon answers on its socket."""


class NotKept(JoulewiseError):
    """The store cannot be read or written: disk full, no rights, damaged. Nothing of what was asked for was done."""


class Conflict(NotKept):
    """Somebody else was faster: the event would not follow the one that it was decided after. Read, and decide anew."""


class EngineLost(JoulewiseError):
    """A cluster's engine (Slurm) does not answer, or not in a way that we understand; it may again, later."""


class Fenced(JoulewiseError):
    """Another scheduler has taken over this cluster: this one must not act any more."""


class MissingPart(JoulewiseError):
    """An optional part (an extra, a library, a compiled piece) is not installed."""
