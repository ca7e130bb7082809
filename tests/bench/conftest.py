"""Benches serve those who compare and change: their tests are of ``make test-all``, but for the siege's, which guard
promises to users."""

from __future__ import annotations

from pathlib import Path

import pytest

_HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == _HERE and not item.path.stem.startswith("test_siege"):
            item.add_marker("exhaustive")
