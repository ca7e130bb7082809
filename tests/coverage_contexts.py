"""Says in the data of coverage.py which test ran a line, in processes that the test starts, too (``make coverage``).

A process that a test starts is measured from its first line on (``COVERAGE_PROCESS_START``) and takes the test's name
from the environment; a server that several tests share counts for the first.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

VARIABLE = "JOULEWISE_TEST"
"""The name of the test that runs, for the processes that it starts."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    from coverage import Coverage

    measuring = Coverage.current()
    name = item.nodeid.partition("@")[0]
    os.environ[VARIABLE] = name
    if measuring is not None:
        measuring.switch_context(name)
    try:
        return (yield)
    finally:
        os.environ.pop(VARIABLE, None)
        if measuring is not None:
            measuring.switch_context("")
