"""What holds for all tests: on a developer's machine a missing part skips its tests; with ``CI=true`` it fails them."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from joulewise import native

# Before anything loads numpy: its linear algebra takes a thread a core, and threads of workers that run side by side
# would spin for each other's cores. The command line does the same for itself (``cli/one_thread``).
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Commands under test keep their runs: never in the store of whoever runs the tests.
os.environ["JOULEWISE_HOME"] = tempfile.mkdtemp(prefix="joulewise-tests-")
atexit.register(shutil.rmtree, os.environ["JOULEWISE_HOME"], ignore_errors=True)
os.environ.pop("JOULEWISE_DATABASE", None)
# Nor do they take defaults from whoever runs the tests.
os.environ["JOULEWISE_CONFIG"] = ""
# Thousands of processes are started here, and none should compile again what another has compiled.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# What a shell starts in the background ignores Ctrl-C, and what nohup starts ignores the end of its terminal; so would
# the commands whose end by these signals is tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

pytest_plugins = [
    "tests.alone_last",
    "tests.scenario_table",
    "tests.tiers",
    "tests.torch_stand_in",
    "tests.postgresql",
    "tests.prometheus",
    "tests.chromium",
]

# Skips that say "does not apply here" rather than "a part is missing".
_DOES_NOT_APPLY = re.compile(
    "this GPU has no energy counter|there is no power to compare|is no Hopper|root may always set|only root"
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever asks for a browser or a Prometheus is of the face; what shares a module's fixture shares a worker."""
    from tests.alone_last import bears_no_company

    for item in items:
        if {"browser", "prometheus"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("face")
        grouped = item.get_closest_marker("xdist_group") is not None or bears_no_company(item)
        if not grouped and _shares_its_modules_fixture(item):
            item.add_marker(pytest.mark.xdist_group(f"{item.path.parent.name}/{item.path.stem}"))


def _shares_its_modules_fixture(item: pytest.Item) -> bool:
    """Whether each worker that runs a test of this module would set up for itself what the others have, too."""
    info = getattr(item, "_fixtureinfo", None)
    found = info.name2fixturedefs.values() if info is not None else ()
    return any(each.scope == "module" for definitions in found for each in definitions[-1:])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if not item.get_closest_marker("gpu"):
        _fail_where_a_part_is_missing(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _fail_where_a_part_is_missing(report)
    return report


def _fail_where_a_part_is_missing(report: pytest.TestReport | pytest.CollectReport) -> None:
    if os.environ.get("CI") != "true" or not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if not _DOES_NOT_APPLY.search(reason):
        report.outcome = "failed"
        report.longrepr = f"skipped, and CI=true does not accept that: {reason}"


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of public measurements; tests that ask for it skip where there is none."""
    folder = os.environ.get("JOULEWISE_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("JOULEWISE_DATA names no folder of public measurements")
    return Path(folder)


@pytest.fixture(scope="session")
def peers_python() -> Path:
    """The Python that has PyTorch; tests that ask for it skip where there is none."""
    python = Path(__file__).parents[1] / ".venv-peers" / "bin" / "python"
    if not python.exists():
        pytest.skip(".venv-peers is not there; 'make peers' makes it")
    return python


@pytest.fixture(scope="session")
def virtual_nvml() -> None:
    """For tests that start a simulator: skip where the virtual NVML is not built."""
    try:
        native.library_path()
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def may_set() -> None:
    """For tests that set GPUs through the driver: skip where that is not allowed."""
    if os.geteuid() != 0:
        pytest.skip("only root may set")
