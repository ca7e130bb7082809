"""Files that an earlier version wrote, where commands find them, and the commands themselves."""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from joulewise.cli import main

WRITTEN = Path(__file__).parent / "written"
TUNED, PLAIN, KILLED = "20261119-041638-ad1c", "20261119-041634-2edc", "20261119-041653-6b2b"
"""Runs of the store."""


@pytest.fixture(scope="package")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the files, the store unpacked as ``store.db``."""
    folder = tmp_path_factory.mktemp("frozen") / "written"
    shutil.copytree(WRITTEN, folder)
    packed = folder / "store.db.gz"
    (folder / "store.db").write_bytes(gzip.decompress(packed.read_bytes()))
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return folder


@pytest.fixture
def frozen() -> bool:
    """Whether what was recorded stands; with ``FREEZE=1`` it is recorded anew."""
    return os.environ.get("FREEZE") != "1"


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """``said(*words)`` is what ``joulewise WORDS`` writes to stdout; ``code`` is the exit code that it must have."""
    monkeypatch.setenv("JOULEWISE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)

    def call(*words: Any, code: int = 0) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        shown = capsys.readouterr()
        assert int(ended.value.code or 0) == code, shown.err
        return shown.out

    return call
