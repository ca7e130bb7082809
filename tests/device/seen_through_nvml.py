"""A simulator that this process sees through NVML while a context lasts, whatever other contexts begin and end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from joulewise.device import nvml_library
from joulewise.device.node import RunningNode
from joulewise.device.nvml import use_virtual


@contextmanager
def seen_through_nvml(node: RunningNode) -> Iterator[None]:
    """Fixtures of one module need not end in the reverse order of their beginning: an environment that names another
    simulator is left alone, and none that is gone comes back."""
    before = os.environ.get(nvml_library.ENVIRONMENT)
    use_virtual(node.directory)
    try:
        yield
    finally:
        nvml_library.close()
        if os.environ.get(nvml_library.ENVIRONMENT) == str(node.directory):
            del os.environ[nvml_library.ENVIRONMENT]
            if before and (Path(before) / "lock").exists():
                os.environ[nvml_library.ENVIRONMENT] = before
