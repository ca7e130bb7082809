"""Everything joulewise raises on purpose, as one tree. A class exists only if someone catches it differently.

::

    JoulewiseError
    ├── GpuError                 something about one GPU
    │   ├── NoGpu                the name matches no GPU, or there is none to use
    │   ├── GpuLost              it fell off the bus, or its driver or simulator went away
    │   ├── NotPermitted         the driver wants more rights than we have
    │   ├── Unsupported          this GPU or driver cannot do that
    │   └── OutOfRange           the value is outside what the hardware or the site allows
    ├── BadSpec                  a GPU specification, flag or file that we cannot understand
    │   └── BadRecording         a recording that is corrupt or of another version
    ├── NoReading                a measurement was asked for where there is nothing to measure with
    ├── WindowError              begin without end, an unknown or repeated window name
    ├── ModelError               a law that cannot be fitted to, or evaluated at, what was given
    └── MissingPart              an optional part (extra, library, compiled piece) is not installed

A message is one line: what happened, the value, the limit, the way out.
"""

from __future__ import annotations


class JoulewiseError(Exception):
    """The root: catch it to catch everything that joulewise raises on purpose."""


class GpuError(JoulewiseError):
    """Something about one GPU."""


class NoGpu(GpuError):
    """The name matches no GPU, or there is none to use."""


class GpuLost(GpuError):
    """The GPU fell off the bus, or its driver or simulator went away. Later calls will fail too."""


class NotPermitted(GpuError):
    """The driver wants more rights than this process has."""


class Unsupported(GpuError):
    """This GPU or driver cannot do what was asked."""


class OutOfRange(GpuError):
    """The value is outside what the hardware or the site allows."""


class BadSpec(JoulewiseError):
    """A GPU specification, flag or file that we cannot understand."""


class BadRecording(BadSpec):
    """A recording that is corrupt or of another version; what precedes the fault can still be read."""


class NoReading(JoulewiseError):
    """A measurement was asked for where there is nothing to measure with."""


class WindowError(JoulewiseError):
    """A window was begun twice, or ended without having begun."""


class ModelError(JoulewiseError):
    """A law that cannot be fitted to, or evaluated at, what was given."""


class MissingPart(JoulewiseError):
    """An optional part (an extra, a library, a compiled piece) is not installed."""
