"""What failed, under a name by which ``--last-failed`` finds it: ``make test`` runs it once more by itself.

pytest-xdist adds a test's group to its name (``test_a.py::test_b@group``). A run without groups knows no such test, and
would pass it over: what failed would be called mended.
"""

from __future__ import annotations

import os
import re

import pytest

_GROUP = re.compile(r"@[^\]]*$")  # behind the parameters, which may have an @ of their own


@pytest.hookimpl(tryfirst=True)  # before the names of failures are kept
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:  # a worker must go on with the names that it was given
        report.nodeid = _GROUP.sub("", report.nodeid)
