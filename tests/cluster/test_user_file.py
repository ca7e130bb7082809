"""Files of users, read by root."""

from __future__ import annotations

import os
from pathlib import Path

from joulewise.cluster import user_file


def test_a_plain_file_is_read_whole_and_one_that_is_too_long_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 100)
    assert user_file.read(tmp_path / "a", 100) == b"x" * 100
    assert user_file.read(tmp_path / "a", 99) is None
    (tmp_path / "a").write_bytes(b"")
    assert user_file.read(tmp_path / "a", 99) == b""


def test_a_file_of_somebody_else_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    assert user_file.read(tmp_path / "a", 9, uid=os.getuid()) == b"x"
    assert user_file.read(tmp_path / "a", 9, uid=os.getuid() + 1) is None


def test_pipes_links_folders_and_strange_paths_are_nothing_and_leave_nothing_open(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "folder").mkdir()
    before = sorted(Path("/proc/self/fd").iterdir())
    for name in ("pipe", "link", "folder", "absent", "a\0b", "\ud800"):
        assert user_file.read(tmp_path / name, 9) is None
    assert user_file.read("/dev/zero", 9) is None
    assert sorted(Path("/proc/self/fd").iterdir()) == before
