"""What run and top measure with, on virtual GPUs in wall time; the numbers themselves are tests/monitor's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from joulewise.cli.look import sights
from joulewise.core.errors import BadSpec
from joulewise.core.measurement import EnergyReading, Outcome, Reading
from joulewise.core.timeline import WallTime
from joulewise.device.recording import load
from joulewise.device.virtual import VirtualGpu
from joulewise.model import catalog
from joulewise.report import meter
from joulewise.report.meter import Meter


@pytest.fixture
def gpu() -> VirtualGpu:
    return VirtualGpu(catalog.load("h200"), time=WallTime())


def until(comes_true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 20.0
    while not comes_true():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def wait_for_a_reading(used: Meter) -> None:
    until(lambda: all(sight.reading is not None for sight in sights(used)))


def test_without_a_gpu_the_host_alone_is_measured_or_it_is_said_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOULEWISE_POWERCAP_ROOT", str(tmp_path / "absent"))
    with Meter([]) as used:
        used.begin()
        assert (used.sampler, used.so_far(), sights(used)) == (None, None, [])
        gpus, host = used.end(Outcome.REACHED)
    assert gpus == []
    assert host.energy_j is None
    assert "does not exist" in (host.reason or "")


def test_a_window_is_seen_while_it_is_open_and_measured_when_it_ends(gpu: VirtualGpu, tmp_path: Path) -> None:
    record = tmp_path / "run.jsonl"
    with Meter([gpu], interval_s=0.02, record=record) as used:
        used.begin()
        wait_for_a_reading(used)
        (sight,) = sights(used)
        assert sight.reading is not None
        assert sight.reading.power_w is not None
        (result,), _ = used.end(Outcome.REACHED)
    assert result.reason is None
    assert result.measurement is not None
    assert result.measurement.energy_j > 0.0
    assert result.series.bins
    assert load(record).gpus[0].uuid == gpu.info.uuid


def test_an_open_window_is_looked_at_no_more_often_than_its_cost_allows(gpu: VirtualGpu) -> None:
    with Meter([gpu]) as used:
        used.begin()
        first = used.so_far()
        assert first is not None
        assert used.so_far() is first  # as fresh as half a second


def test_a_gpu_that_is_lost_is_part_of_the_result(gpu: VirtualGpu) -> None:
    other = VirtualGpu(catalog.load("h200"), time=gpu.time, index=1)
    with Meter([gpu, other], interval_s=0.02) as used:
        used.begin()
        wait_for_a_reading(used)
        other.fault(lost=True)
        until(lambda: sights(used)[1].reason is not None)
        assert sights(used)[1].reading is None
        (well, lost), _ = used.end(Outcome.REACHED)
    assert well.measurement is not None
    assert lost.measurement is not None
    assert (well.measurement.outcome, lost.measurement.outcome) == (Outcome.REACHED, Outcome.FAILED)
    assert any("GPU lost" in note for note in lost.measurement.notes)


class Wedged(VirtualGpu):
    """Its driver answers no more once it is told to."""

    free = threading.Event()
    free.set()

    def read(self) -> Reading:
        self.free.wait(60.0)
        return super().read()

    def energy(self) -> EnergyReading:
        self.free.wait(60.0)
        return super().energy()


def test_a_driver_that_hangs_is_left_behind_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "_PATIENCE_S", 0.2)
    gpu = Wedged(catalog.load("h200"), time=WallTime())
    with Meter([gpu], interval_s=0.02) as used:
        used.begin()
        wait_for_a_reading(used)
        gpu.free.clear()
        (result,), _ = used.end(Outcome.REACHED)
        gpu.free.set()
    assert result.measurement is None
    assert "the driver hangs: no answer for 0.2 s" in (result.reason or "")


def test_a_recording_that_cannot_be_written_is_refused_before_anything_is_measured(
    gpu: VirtualGpu, tmp_path: Path
) -> None:
    with pytest.raises(BadSpec):
        Meter([gpu], record=tmp_path / "no" / "run.jsonl")


def test_what_a_call_raises_in_time_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        meter._within(5.0, lambda: 1 / 0)
    assert meter._within(5.0, lambda: 7) == 7


def test_the_hosts_counters_are_kept_up_by_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zone = tmp_path / "intel-rapl:0"
    zone.mkdir()
    for name, text in {"name": "package-0", "energy_uj": "0", "max_energy_range_uj": "262143328850"}.items():
        (zone / name).write_text(text)
    monkeypatch.setenv("JOULEWISE_POWERCAP_ROOT", str(tmp_path))
    monkeypatch.setattr(meter, "_HOST_S", 0.01)
    with Meter([]) as used:
        used.begin()
        reads, read = [], used.host.read
        monkeypatch.setattr(used.host, "read", lambda: reads.append(threading.current_thread()) or read())
        until(lambda: len(reads) >= 2)
        assert threading.current_thread() not in reads
        _, host = used.end(Outcome.REACHED)
        assert host.energy_j == 0.0
        (beside,) = set(reads) - {threading.current_thread()}
        beside.join(20)
        assert not beside.is_alive()
