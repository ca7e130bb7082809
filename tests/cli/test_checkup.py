"""What doctor finds out of GPUs that are difficult, without a machine that has them; test_doctor runs it for real."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from joulewise.cli import checkup
from joulewise.cli.checkup import Checkup, GpuFindings
from joulewise.cli.control import Control, Daemon
from joulewise.cli.finding import Finding
from joulewise.core.errors import GpuLost, Unsupported
from joulewise.core.knob import Choices, Space
from joulewise.core.measurement import EnergyReading, Reading, SensorTiming
from joulewise.core.timeline import TimeSource, WallTime
from joulewise.device.gpu import GpuInfo


class OddGpu:
    """A GPU that is difficult in the way that a test wants."""

    def __init__(self, info: GpuInfo, reading: Reading | Exception, energy: EnergyReading | Exception) -> None:
        self._info = info
        self._reading = reading
        self._energy = energy

    @property
    def info(self) -> GpuInfo:
        return self._info

    @property
    def time(self) -> TimeSource:
        return WallTime()

    def read(self) -> Reading:
        if isinstance(self._reading, Exception):
            raise self._reading
        return self._reading

    def energy(self) -> EnergyReading:
        if isinstance(self._energy, Exception):
            raise self._energy
        return self._energy

    def processes(self) -> None:
        return


INFO = GpuInfo(
    uuid="GPU-1",
    name="Odd",
    index=0,
    backend="nvml",
    space=Space({"power_limit_w": Choices(100, 300), "sm_mhz": Choices.of([float(mhz) for mhz in range(135, 200, 7)])}),
    sensors=SensorTiming(),
)
GOOD = Reading(0.0, power_w=100.0)
NO_COUNTER = Unsupported("none")


def what(findings: GpuFindings, name: str) -> Finding:
    (found,) = (each for each in findings.findings if each.what == name)
    return found


def test_a_gpu_without_a_counter_is_measured_by_its_power() -> None:
    found = checkup._gpu(OddGpu(INFO, GOOD, NO_COUNTER), mine=True, control=Control())
    assert what(found, "energy").ok is None
    assert "integrated" in what(found, "energy").says
    assert found.measurable


def test_a_lost_gpu_says_so_and_cannot_be_measured() -> None:
    found = checkup._gpu(OddGpu(INFO, GpuLost("it fell off"), GpuLost("it fell off")), mine=True, control=Control())
    assert what(found, "power") == Finding("power", False, "it fell off")
    assert not found.measurable


def test_a_gpu_that_tells_no_power_and_has_no_counter_cannot_be_measured() -> None:
    found = checkup._gpu(OddGpu(INFO, Reading(0.0, sm_mhz=1.0), NO_COUNTER), mine=True, control=Control())
    assert what(found, "power").ok is False
    assert not found.measurable


def test_a_long_list_of_clocks_is_shown_as_its_ends() -> None:
    found = checkup._gpu(OddGpu(INFO, GOOD, NO_COUNTER), mine=True, control=Control())
    assert what(found, "sm_mhz").says.endswith("be set to 135–198")


def test_a_gpu_on_which_nothing_can_be_set_says_so() -> None:
    found = checkup._gpu(OddGpu(replace(INFO, space=Space()), GOOD, NO_COUNTER), mine=True, control=Control())
    assert what(found, "set").ok is False
    assert not found.settable


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_mig_is_roots_to_set_and_root_is_told_whom_it_hits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JOULEWISE_VNVML", raising=False)
    info = replace(INFO, notes=("MIG is on: power and energy are of the whole GPU",))
    found = checkup._gpu(OddGpu(info, GOOD, NO_COUNTER), mine=True, control=Control())
    assert found.settable is checkup.capable(21)
    assert what(found, "note").says == info.notes[0]
    if found.settable:
        assert what(found, "MIG").says == "is on: root may set it, but it hits all instances"
    os.seteuid(65534)
    try:
        found = checkup._gpu(OddGpu(info, GOOD, NO_COUNTER), mine=True, control=Control())
    finally:
        os.seteuid(0)
    assert not found.settable
    assert "root's alone" in what(found, "rights").says


def test_rights_are_read_from_the_capabilities(tmp_path: Path) -> None:
    status = tmp_path / "status"
    for effective, expected in (("0000000000200000", True), ("000001ffffdfffff", False), ("0", False)):
        status.write_text(f"Name:\tx\nCapEff:\t{effective}\n")
        assert checkup.capable(21, status) is expected


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_an_ordinary_user_is_told_how_to_get_the_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JOULEWISE_VNVML", raising=False)
    os.seteuid(65534)
    try:
        rights = checkup.may_set()
    finally:
        os.seteuid(0)
    assert rights.ok is False
    assert "65534" in rights.says
    assert rights.do == checkup.ROOT


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("NVIDIA: no driver; install it", Finding("NVIDIA", False, "no driver", "install it")),
        ("AMD: nothing", Finding("AMD", False, "nothing", None)),
        ("no simulator runs: x; start one", Finding("GPU", False, "no simulator runs: x", "start one")),
    ],
)
def test_a_backends_own_words_are_split_into_why_and_way_out(reason: str, expected: Finding) -> None:
    assert checkup._backend(reason) == expected


def test_a_sensor_that_looks_part_of_the_time_says_so() -> None:
    info = replace(INFO, sensors=SensorTiming(power_update_s=0.1, power_window_s=0.025))
    assert what(checkup._gpu(OddGpu(info, GOOD, NO_COUNTER), True, Control()), "power") == Finding(
        "power", True, "new every 100 ms, looking 25 % of the time"
    )


def through_the_daemon(may: dict[str, object]) -> GpuFindings:
    """What a user without rights of their own is told where a daemon answers."""
    daemon = Daemon("0", 1000, ("GPU-1",), (), {"GPU-1": may})
    return checkup._gpu(OddGpu(INFO, GOOD, NO_COUNTER), True, Control(daemon=daemon))


@pytest.fixture
def without_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup, "may_set", lambda: Finding("rights", False, "no", checkup.ROOT))


@pytest.mark.usefixtures("without_rights")
def test_what_the_daemon_allows_can_be_set_within_its_range_and_the_rest_cannot() -> None:
    found = through_the_daemon({"knobs": {"power_limit_w": [150, 250]}})
    assert found.settable
    assert what(found, "power_limit_w").says.startswith("can be set to 150–250, of 100–300")
    assert what(found, "sm_mhz").ok is False
    assert "neither a grant nor a rule" in what(found, "sm_mhz").says
    whole = through_the_daemon({"knobs": {"sm_mhz": [135, 198]}})
    assert what(whole, "sm_mhz").says == "can be set to 135–198 through the daemon"


@pytest.mark.usefixtures("without_rights")
def test_a_daemon_that_allows_nothing_says_why_and_whom_to_ask() -> None:
    why = "uid 1000 may not set sm_mhz on GPU-1: nothing of yours runs there; ask an admin"
    found = through_the_daemon({"knobs": {}, "why": why})
    assert not found.settable
    rights = what(found, "rights")
    assert rights.says == "the daemon lets uid 1000 set nothing: nothing of yours runs there"
    assert rights.do is not None
    assert "joulewise grant add --uid 1000 --gpu GPU-1" in rights.do


def test_one_part_that_can_be_measured_is_enough() -> None:
    lost = checkup._gpu(OddGpu(INFO, GpuLost("gone"), GpuLost("gone")), True, Control())
    well = checkup._gpu(OddGpu(INFO, GOOD, NO_COUNTER), True, Control())
    mine, host = Finding("mine", True, "0"), Finding("energy", True, "package-0")

    def seen(*gpus: GpuFindings, host: tuple[Finding, ...] = ()) -> Checkup:
        return Checkup("0", "3", "Linux", 1000, gpus, mine, host, ())

    assert not seen(lost).measurable
    assert seen(lost, well).measurable
    assert seen(lost, host=(host,)).measurable
    plain = seen(lost, well).as_json()
    assert [gpu["measurable"] for gpu in plain["gpus"]] == [False, True]
    assert plain["gpus"][0]["findings"][0] == {"what": "power", "ok": False, "says": "gone", "do": None}
