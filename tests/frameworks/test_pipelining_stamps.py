"""When operations were on the GPU: by events, by virtual work, by the host's clock."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from joulewise.core.timeline import VirtualTime
from joulewise.device import work
from joulewise.frameworks.gpu_time import GpuTime
from joulewise.frameworks.pipelining_stamps import CudaStamp, Stamps
from tests.frameworks.test_gpu_time import Machine


def test_events_tell_when_the_gpu_was_at_it_however_far_the_host_is_ahead() -> None:
    machine = Machine(drift=0.0)
    gpu_time = GpuTime(machine, now_s=machine.now_s)
    stamps = []
    for _ in range(3):
        stamp = CudaStamp(gpu_time, 0)
        machine.launch("main 0", 0.25)
        stamp.end()
        stamps.append(stamp)
    launched_s = machine.now_s()
    assert stamps[0].began_s() == pytest.approx(launched_s, abs=1e-3)
    assert stamps[0].ended_s() is None
    assert stamps[2].began_s() is None
    machine.time_s += 0.6
    assert stamps[1].ended_s() == pytest.approx(launched_s + 0.5, abs=1e-3)
    assert stamps[2].began_s() == pytest.approx(launched_s + 0.5, abs=1e-3)
    assert stamps[2].ended_s() is None
    machine.time_s += 1.0
    for number, stamp in enumerate(stamps):
        began_s, ended_s = stamp.began_s(), stamp.ended_s()
        assert began_s is not None
        assert ended_s is not None
        assert ended_s - began_s == pytest.approx(0.25, abs=1e-5)
        assert began_s == pytest.approx(launched_s + 0.25 * number, abs=1e-3)


def test_nothing_is_recorded_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=machine))
    stamps = Stamps(VirtualTime(), SimpleNamespace(type="cuda", index=0))
    assert isinstance(stamps.begin(), CudaStamp)
    machine.capturing = True
    assert stamps.begin() is None


def test_without_a_gpu_the_hosts_clock_tells() -> None:
    time = VirtualTime(10.0)
    stamp = Stamps(time, SimpleNamespace(type="cpu")).begin()
    assert stamp is not None
    assert stamp.ended_s() is None
    time.sleep(0.5)
    stamp.end()
    assert (stamp.began_s(), stamp.ended_s()) == (10.0, 10.5)


def test_virtual_work_is_as_long_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    time = VirtualTime(10.0)
    before, within = work.Sent(), work.Sent()
    monkeypatch.setattr(work, "last_sent", lambda: before)
    before.done = work.Done(1.0, 2.0, 0.0)
    idle, busy = Stamps(time).begin(), Stamps(time).begin()
    assert idle is not None
    assert busy is not None
    time.sleep(1.0)
    idle.end()
    assert (idle.began_s(), idle.ended_s()) == (10.0, 11.0)
    within.done = work.Done(9.8, 10.7, 0.0)
    monkeypatch.setattr(work, "last_sent", lambda: within)
    busy.end()
    assert (busy.began_s(), busy.ended_s()) == (9.8, 10.7)
