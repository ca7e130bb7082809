"""What a run leaves behind, and what the next one makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from joulewise.core.knob import DEFAULT, Choices, Setting, Space
from joulewise.device.gpu import GpuInfo
from joulewise.model.learnt import Learnt
from joulewise.store.database import Database
from joulewise.store.memory import Memory
from joulewise.tune.recall import Recall

SPACE = Space({"sm_mhz": Choices(300, 1500, 15)})
HELD = Setting(sm_mhz=1200)
LEARNT = Learnt(power_w=300.0, card={"leak": (1.1, 0.1)})


@pytest.fixture
def memory(tmp_path: Path) -> Memory:
    return Memory(Database(tmp_path / "joulewise.db"))


def info(uuid: str = "GPU-1", name: str = "NVIDIA H200") -> GpuInfo:
    return GpuInfo(uuid, name, 0, "virtual")


def kept(memory: Memory, *, verified: bool = True) -> None:
    assert Recall(memory, "job", info()).keep({"": LEARNT}, {"": HELD}, {"": verified}, None)


@pytest.mark.parametrize("verified", [True, False])
def test_what_was_best_is_where_the_next_run_starts(memory: Memory, verified: bool) -> None:
    kept(memory, verified=verified)
    recall = Recall(memory, "job", info())
    assert recall.start("", SPACE) == HELD
    assert recall.learnt("") == LEARNT
    assert recall.says == "known from 1 earlier run on this GPU"
    assert recall.start("another phase", SPACE) is None


def test_where_nothing_was_set_there_is_no_start(memory: Memory) -> None:
    assert Recall(memory, "job", info()).keep({"": LEARNT}, {"": DEFAULT}, {"": False}, None)
    assert Recall(memory, "job", info()).start("", SPACE) is None


def test_another_card_of_the_model_starts_there_too_and_another_model_does_not(memory: Memory) -> None:
    kept(memory)
    assert Recall(memory, "job", info("GPU-2")).start("", SPACE) == HELD
    assert Recall(memory, "job", info("GPU-2", "NVIDIA A100")).start("", SPACE) is None


def test_a_setting_that_may_not_be_set_here_is_snapped_or_dropped(memory: Memory) -> None:
    kept(memory)
    assert Recall(memory, "job", info()).start("", Space({"sm_mhz": Choices(300, 1000, 15)})) == Setting(sm_mhz=1000)
    assert Recall(memory, "job", info()).start("", Space({"power_limit_w": Choices(200, 700)})) is None


def test_another_job_on_the_card_knows_the_card_only(memory: Memory) -> None:
    kept(memory)
    learnt = Recall(memory, "another job", info()).learnt("")
    assert learnt == LEARNT.of_card()
    assert Recall(memory, "another job", info()).start("", SPACE) is None


def test_without_memory_or_fingerprint_nothing_is_known_or_kept(memory: Memory) -> None:
    for recall in (Recall(None, "job", info()), Recall(memory, "", info())):
        assert not recall.keep({"": LEARNT}, {"": DEFAULT}, {"": True}, None)
        assert recall.learnt("") is None
        assert recall.start("", SPACE) is None


def test_a_later_run_that_verified_nothing_leaves_what_was_verified(memory: Memory) -> None:
    kept(memory)
    other = Setting(sm_mhz=900)
    again = Recall(memory, "job", info())
    assert again.keep({"": LEARNT, "b": LEARNT}, {"": other, "b": other}, {"": False, "b": True}, None)
    assert Recall(memory, "job", info()).start("", SPACE) == HELD
    assert Recall(memory, "job", info()).start("b", SPACE) == other


def test_phases_that_a_later_run_did_not_see_are_not_forgotten(memory: Memory) -> None:
    kept(memory)
    assert Recall(memory, "job", info()).keep({"b": LEARNT}, {"b": DEFAULT}, {"b": False}, None)
    assert Recall(memory, "job", info()).start("", SPACE) == HELD


def test_what_a_later_run_refused_is_no_start_any_more(memory: Memory) -> None:
    kept(memory)
    assert Recall(memory, "job", info()).keep({"": LEARNT}, {"": DEFAULT}, {"": False}, None, {"": [HELD]})
    assert Recall(memory, "job", info()).start("", SPACE) is None


@pytest.mark.parametrize(
    "payload", [{}, {"phases": []}, {"phases": {"": {}}}, {"phases": {"": {"learnt": "?", "chosen": 3}}}]
)
def test_a_payload_that_cannot_be_understood_is_no_memory(memory: Memory, payload: dict[str, object]) -> None:
    memory.keep("job", "GPU-1", "NVIDIA H200", payload)
    recall = Recall(memory, "job", info())
    assert recall.learnt("") is None
    assert recall.start("", SPACE) is None
