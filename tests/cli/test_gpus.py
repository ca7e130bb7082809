"""``--gpu SPEC`` made into GPUs, where no simulator is needed for that; test_run has those that start one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from joulewise.cli import gpus
from joulewise.cli.gpus import OpenGpus, opened, uuids
from joulewise.core.errors import BadSpec, NoGpu
from joulewise.device import discover
from joulewise.device.visible import Visible

UUID = "GPU-01234567-89ab-cdef-0123-456789abcdef"


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def mine() -> tuple[list[object], Visible]:
        raise NoGpu("there is none; plug one in")

    monkeypatch.setattr(discover, "mine", mine)


def test_a_recording_is_opened_and_a_child_sees_what_it_would_have_seen_anyway(recording: Path) -> None:
    with opened(f"replay:{recording}") as found:
        (gpu,) = found.gpus
        assert gpu.info.name == "NVIDIA H200"
        assert found.environ is os.environ
        assert (found.named, found.simulated, found.why) == (True, False, f"--gpu replay:{recording}")


@pytest.mark.parametrize("spec", [None, "nvml:0", "replay:run.jsonl"])
def test_only_virtual_gpus_live_faster(spec: str | None) -> None:
    with pytest.raises(BadSpec, match=r"--speed 4 is for virtual GPUs"), opened(spec, speed=4.0):
        raise AssertionError("nothing is opened")


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_mine_is_refused_with_the_way_out_and_auto_would_take_a_virtual_one() -> None:
    with pytest.raises(NoGpu, match="plug one in"), opened(None):
        raise AssertionError("nothing is opened")
    assert gpus._mine(must=False) is None


@pytest.mark.parametrize(("why", "named"), [("all there are", False), ("CUDA_VISIBLE_DEVICES=0", True)])
def test_gpus_are_named_where_a_variable_names_them(monkeypatch: pytest.MonkeyPatch, why: str, named: bool) -> None:
    monkeypatch.setattr(discover, "mine", lambda: ([], Visible((), why, True)))
    with opened(None) as found:
        assert (found.why, found.named) == (why, named)


def test_no_gpu_is_neither_virtual_nor_real() -> None:
    nothing = OpenGpus.none("there is none")
    assert (nothing.gpus, nothing.virtual, nothing.why) == ([], False, "there is none")


def test_a_full_name_is_believed_without_asking_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discover, "find", lambda *_, **__: pytest.fail("the driver is asked"))
    other = UUID.replace("0", "f")
    assert uuids([UUID, f"nvml:{other}, {UUID}"]) == [UUID, other, UUID]


def test_what_is_no_gpu_of_this_machine_is_refused(recording: Path) -> None:
    for spec in ("sim:h200", f"replay:{recording}"):
        with pytest.raises(BadSpec, match="only NVIDIA GPUs of this machine"):
            uuids([spec])
