"""One stage for all scenarios of a module that leave it as they found it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.scenarios.staging import Stage, staged


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """Eight GPUs and a daemon."""
    with staged() as shared:
        yield shared
