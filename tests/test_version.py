"""One version, wherever it is asked for: nothing may depend on how the package came to be importable."""

from __future__ import annotations

import tomllib
from pathlib import Path

import joulewise

ROOT = Path(__file__).parents[1]


def test_the_packages_version_is_that_of_its_metadata() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == joulewise.__version__


def test_no_module_asks_the_installer_for_our_own_version() -> None:
    # sources that were only put on PYTHONPATH have no metadata, and a report of theirs is as good
    asking = 'version("joulewise")'
    assert [path for path in (ROOT / "src").rglob("*.py") if asking in path.read_text()] == []
