"""joulewise: spend fewer joules on deep-learning training, and prove what was saved.

Importing this package loads nothing outside the standard library; its public names load on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from joulewise.core.version import VERSION

__version__ = VERSION

if TYPE_CHECKING:
    from joulewise.core.errors import JoulewiseError
    from joulewise.core.knob import Setting
    from joulewise.core.measurement import Measurement
    from joulewise.device.discover import find as gpus
    from joulewise.device.hold import hold
    from joulewise.device.lease import Lease
    from joulewise.frameworks.elastic import elastic
    from joulewise.frameworks.hooks import phase, step
    from joulewise.frameworks.metric import metric, should_stop
    from joulewise.frameworks.pipelining import follow
    from joulewise.monitor.window import Monitor

__all__ = [
    "JoulewiseError",
    "Lease",
    "Measurement",
    "Monitor",
    "Setting",
    "__version__",
    "elastic",
    "follow",
    "gpus",
    "hold",
    "metric",
    "phase",
    "should_stop",
    "step",
]

_HOMES = {
    "JoulewiseError": ("joulewise.core.errors", "JoulewiseError"),
    "Lease": ("joulewise.device.lease", "Lease"),
    "Measurement": ("joulewise.core.measurement", "Measurement"),
    "Monitor": ("joulewise.monitor.window", "Monitor"),
    "Setting": ("joulewise.core.knob", "Setting"),
    "elastic": ("joulewise.frameworks.elastic", "elastic"),
    "follow": ("joulewise.frameworks.pipelining", "follow"),
    "gpus": ("joulewise.device.discover", "find"),
    "hold": ("joulewise.device.hold", "hold"),
    "metric": ("joulewise.frameworks.metric", "metric"),
    "phase": ("joulewise.frameworks.hooks", "phase"),
    "should_stop": ("joulewise.frameworks.metric", "should_stop"),
    "step": ("joulewise.frameworks.hooks", "step"),
}


def __getattr__(name: str) -> Any:
    """Load a public name from its home on first use."""
    try:
        module, attribute = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module 'joulewise' has no attribute {name!r}") from None
    value = getattr(importlib.import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
