"""Which scheduler may act: the highest epoch, whoever asks and in whatever order."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.cluster.engines.slurm_fence import Fence
from joulewise.core.errors import BadSpec, EngineLost, Fenced


def test_the_later_scheduler_acts_and_the_earlier_one_is_fenced(tmp_path: Path) -> None:
    first, second = Fence(tmp_path / "epoch"), Fence(tmp_path / "epoch")
    first.take(3)
    with first.acting():
        pass
    second.take(4)
    with pytest.raises(Fenced, match="epoch 4, ours is 3"), first.acting():
        pass
    with second.acting():
        pass
    with pytest.raises(Fenced):
        first.take(3)


def test_nobody_takes_over_while_something_is_being_done(tmp_path: Path) -> None:
    first, second = Fence(tmp_path / "epoch"), Fence(tmp_path / "epoch")
    first.take(1)
    taken = threading.Event()

    def take() -> None:
        second.take(2)
        taken.set()

    with first.acting():
        thread = threading.Thread(target=take)
        thread.start()
        assert not taken.wait(0.2)
    assert taken.wait(10)
    thread.join()


@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=8))
def test_the_highest_epoch_is_kept_whatever_the_order(
    tmp_path_factory: pytest.TempPathFactory, epochs: list[int]
) -> None:
    path = tmp_path_factory.mktemp("fence") / "epoch"
    for epoch in epochs:
        try:
            Fence(path).take(epoch)
        except Fenced:
            continue
    assert int(path.read_text()) == max(epochs)


def test_a_folder_that_is_not_there_and_a_file_that_is_no_number_are_said(tmp_path: Path) -> None:
    with pytest.raises(BadSpec, match="name a folder that all schedulers"):
        Fence(tmp_path / "nowhere" / "epoch").take(1)
    (tmp_path / "epoch").write_text("soon")
    with pytest.raises(EngineLost, match="instead of a number"):
        Fence(tmp_path / "epoch").take(1)
