"""One writer a GPU, and what the next one hears of the last."""

from pathlib import Path

import pytest

from joulewise.core.errors import NotSaved
from joulewise.device.lease import Owner
from joulewise.device.saved import Entry, Saved

UUID = "GPU-11111111-2222-3333-4444-555555555555"


def opened(folder: Path, locks: Path) -> Saved:
    folder.mkdir(mode=0o700, exist_ok=True)
    saved = Saved.open(folder, UUID)
    try:
        saved.lock_gpu(locks)
    except NotSaved:
        saved.close()
        raise
    return saved


def test_what_is_owed_in_a_folder_that_is_not_there_now_is_not_forgotten(tmp_path: Path) -> None:
    locks, first, second = tmp_path / "locks", tmp_path / "first", tmp_path / "second"
    saved = opened(first, locks)
    saved.save(Entry.new("power_limit_w", 700.0, Owner("lease-1", 0, 4242, "python", 77, ""), None))
    saved.close()
    away = first.rename(tmp_path / "away")
    for _ in range(2):
        with pytest.raises(NotSaved, match="first, which is not there; bring it back"):
            opened(second, locks)
    away.rename(first)
    with pytest.raises(NotSaved, match="joulewise restore --state"):
        opened(second, locks)


def test_a_folder_in_which_nothing_was_owed_may_go(tmp_path: Path) -> None:
    locks, first = tmp_path / "locks", tmp_path / "first"
    opened(first, locks).close()
    first.rename(tmp_path / "away")
    opened(tmp_path / "second", locks).close()
