"""Suites that any implementation of a joulewise protocol inherits in its own tests. Needs pytest.

::

    from joulewise.testing import GpuConformance

    class TestMyGpu(GpuConformance):
        @pytest.fixture
        def gpu(self):
            return MyGpu(...)
"""

from __future__ import annotations

import pytest

# Before the suite is imported, so that a failing assertion shows its values in other people's tests too.
pytest.register_assert_rewrite(*(f"joulewise.testing.{name}" for name in ("engine", "gpu", "journal", "lease")))

from joulewise.testing.engine import EngineConformance, EngineStage  # noqa: E402
from joulewise.testing.gpu import GpuConformance, LostGpuConformance  # noqa: E402
from joulewise.testing.journal import JournalConformance  # noqa: E402
from joulewise.testing.lease import LeaseConformance, LeaseStage  # noqa: E402

__all__ = [
    "EngineConformance",
    "EngineStage",
    "GpuConformance",
    "JournalConformance",
    "LeaseConformance",
    "LeaseStage",
    "LostGpuConformance",
]
