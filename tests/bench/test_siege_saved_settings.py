"""The fuzzer of damaged files: on a sample, and that it would notice a GPU that is left as it is."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.siege import saved_settings
from bench.siege.saved_settings import DAMAGES, Desk
from joulewise.device.undo import Undo
from tests.tiers import examples


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    return Desk(tmp_path_factory.mktemp("desk") / "state")


@pytest.mark.sampled
@given(seed=st.integers(0, 1 << 32), kind=st.sampled_from(list(DAMAGES)))
@settings(max_examples=examples(150), deadline=None)
def test_however_a_file_is_damaged_a_gpu_comes_back_or_is_owed(desk: Desk, seed: int, kind: str) -> None:
    outcomes = desk.trial(random.Random(seed), kind)
    assert len(outcomes) == (2 if kind == "files swapped" else 1)
    assert set(outcomes) <= {"restored", "owed"}


def test_what_can_be_restored_is_and_what_cannot_is_owed(desk: Desk) -> None:
    outcomes = {kind: desk.trial(random.Random(7), kind)[0] for kind in ("huge", "something after", "empty", "a link")}
    assert outcomes == {"huge": "restored", "something after": "restored", "empty": "owed", "a link": "owed"}


def test_a_gpu_that_is_left_and_not_named_is_called_silent(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Undo, "after_corruption", lambda self: [])
    assert "silent" in {outcome for seed in range(5) for outcome in desk.trial(random.Random(seed), "empty")}


def test_through_processes_of_their_own_none_is_silent(virtual_nvml: None, may_set: None) -> None:
    for daemon in (False, True):
        outcomes = saved_settings.in_processes(random.Random(3), daemon=daemon)
        assert len(outcomes) == saved_settings.GPUS
        assert "silent" not in outcomes
