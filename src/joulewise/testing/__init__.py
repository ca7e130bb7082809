"""Suites that any implementation of a joulewise protocol inherits in its own tests; they need pytest.

::

    from joulewise.testing import GpuConformance

    class TestMyGpu(GpuConformance):
        @pytest.fixture
        def gpu(self):
            return MyGpu(...)

A suite is loaded on first use: the parts beside them (a Slurm of virtual nodes) serve the demonstration, too, where
there is no pytest.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from joulewise.testing.engine import EngineConformance, EngineStage
    from joulewise.testing.gpu import GpuConformance, LostGpuConformance
    from joulewise.testing.journal import JournalConformance
    from joulewise.testing.lease import LeaseConformance, LeaseStage

__all__ = [
    "EngineConformance",
    "EngineStage",
    "GpuConformance",
    "JournalConformance",
    "LeaseConformance",
    "LeaseStage",
    "LostGpuConformance",
]

_HOMES = {
    "EngineConformance": "engine",
    "EngineStage": "engine",
    "GpuConformance": "gpu",
    "JournalConformance": "journal",
    "LeaseConformance": "lease",
    "LeaseStage": "lease",
    "LostGpuConformance": "gpu",
}


def __getattr__(name: str) -> Any:
    """Load a suite from its home on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = f"{__name__}.{_HOMES[name]}"
    if home not in sys.modules:
        import pytest

        # Before the suite is imported, so that a failing assertion shows its values in other people's tests too.
        pytest.register_assert_rewrite(home)
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value
