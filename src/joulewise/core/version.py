"""Which joulewise this is: one place, whether it was installed or its sources were only put on ``PYTHONPATH``."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"
"""The same as in ``pyproject.toml``."""
