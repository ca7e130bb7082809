import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.serve.serving import Serving
from tests.serve.ui.tab import Pages, Tab

DEMO = Path(__file__).parents[3] / "examples" / "demo_face.py"


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory, virtual_nvml: None) -> Path:
    """A folder with something of everything, made by real processes on virtual GPUs."""
    folder = tmp_path_factory.mktemp("demo")
    environ = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    made = subprocess.run(
        [sys.executable, str(DEMO), str(folder), "--quick"], env=environ, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
    return folder


@pytest.fixture(scope="session")
def dashboard(demo: Path) -> Iterator[Serving]:
    """A server on it, which reads two virtual GPUs."""
    worth = ("--kwh-price", "0.3", "--currency", "EUR")
    flags = ("--plans", str(demo / "plans"), "--gpu", "sim:h200*2", *worth)
    serving = Serving(str(demo / "joulewise.db"), demo, *flags)
    yield serving
    serving.end()


@pytest.fixture(scope="module")
def pages(browser) -> Pages:
    return Pages(browser)


@pytest.fixture
def tab(pages: Pages, dashboard: Serving) -> Iterator[Callable[..., Tab]]:
    """Opens tabs on the dashboard, or on another ``url``. No tab may have complained, or asked anybody else."""
    tabs: list[Tab] = []

    def opened(url: str = dashboard.url, **how: bool) -> Tab:
        tabs.append(Tab(pages, url, **how))
        return tabs[-1]

    yield opened
    for each in tabs:
        each.close()
        assert each.faults == []
        assert each.elsewhere() == []
