"""What is set on a GPU without anybody being told, and what doctor says of it; test_doctor_site asks a whole site."""

from __future__ import annotations

from dataclasses import replace

import pytest

from joulewise.cli.control import Control, Daemon
from joulewise.cli.finding import Finding
from joulewise.cli.records import Record
from joulewise.cli.truths import set_silently, shared
from joulewise.core.knob import Setting
from joulewise.daemon.policy import Policy
from joulewise.daemon.rights import Seen
from joulewise.device.lease import Owner
from joulewise.device.saved import Entry
from joulewise.device.virtual import VirtualGpu
from joulewise.device.virtual_controls import VirtualControls
from joulewise.model.physics import Load

HARD = Load(gpu_s=1000.0, sm_share=0.9, dynamic_w=250.0)


class Controls(VirtualControls):
    """A virtual GPU's, with a driver that may be unloaded and a board controller that may hold it down."""

    persists: bool | None = True
    enforced_w: float | None = None

    def persistence(self) -> bool | None:
        return self.persists

    def enforced_limit_w(self) -> float | None:
        return self.enforced_w or super().enforced_limit_w()


@pytest.fixture
def controls(idle_gpu: VirtualGpu) -> Controls:
    return Controls(idle_gpu)


def answering(*leases: dict[str, object]) -> Control:
    """A daemon answers, and we may read the files."""
    return Control(daemon=Daemon("0", 0, (), leases))


def lease(gpu: str, knob: str, wrote: float | None) -> dict[str, object]:
    settings = {} if wrote is None else {gpu: {knob: wrote}}
    return {"gpus": [gpu], "knobs": [knob], "stage": "held", "uid": 7, "pid": 42, "command": "x", "settings": settings}


def only(found: list[Finding]) -> Finding:
    (one,) = found
    return one


def test_a_gpu_that_is_as_it_should_be_needs_no_word(controls: Controls) -> None:
    assert set_silently(controls, Control(), 0) == []


def test_a_lost_gpu_is_not_spoken_of_here(controls: Controls, idle_gpu: VirtualGpu) -> None:
    controls.persists = False
    idle_gpu.fault(lost=True)
    assert [each.what for each in set_silently(controls, Control(), 0)] == ["persistence"]


def test_persistence_that_nobody_knows_of_is_not_called_off(controls: Controls) -> None:
    controls.persists = None
    assert set_silently(controls, Control(), 0) == []


def test_a_cap_of_a_lease_is_told_by_whom_and_is_well(controls: Controls) -> None:
    controls.write("power_limit_w", 500.0)
    found = only(set_silently(controls, answering(lease(controls.uuid, "power_limit_w", 500.0)), 0))
    assert found == Finding("power cap", True, "limited to 500 W of its usual 700 W by a lease of uid 7 pid 42 (x)")
    before = only(set_silently(controls, answering(lease(controls.uuid, "power_limit_w", None)), 0))
    assert "as it was before a lease of" in before.says


def test_a_limit_that_somebody_changed_under_a_lease_is_told_even_if_it_is_the_usual_one(controls: Controls) -> None:
    found = only(set_silently(controls, answering(lease(controls.uuid, "power_limit_w", 500.0)), 0))
    assert found.ok is None
    assert "has set 500 W: somebody else has changed it" in found.says


def test_whose_a_cap_may_be_is_said_as_far_as_it_is_known(controls: Controls) -> None:
    controls.write("power_limit_w", 500.0)
    alone = only(set_silently(controls, Control(), 3))
    assert alone.says.endswith("perhaps by joulewise: no daemon answers")
    blind = only(set_silently(controls, replace(answering(), sees_files=False), 3))
    assert blind.says.endswith("perhaps by joulewise: its files are root's to read")
    left = only(set_silently(controls, replace(answering(), owed=frozenset({controls.uuid})), 3))
    assert left.says.endswith("perhaps by a joulewise that is gone")
    assert left.do == "as root: 'joulewise restore'"
    sure = only(set_silently(controls, answering(), 3))
    assert sure.says.endswith("no lease of joulewise holds it: left behind?")
    assert sure.do == "if it is nobody's, as root: 'nvidia-smi -i 3 -pl 700'"


def test_a_board_controller_that_holds_power_lower_is_told_from_a_cap(controls: Controls) -> None:
    controls.enforced_w = 450.0
    found = only(set_silently(controls, answering(), 0))
    assert found.says.startswith("450 W are in force, below the 700 W asked for")
    controls.enforced_w = 699.8  # a driver's rounding
    assert set_silently(controls, answering(), 0) == []


@pytest.fixture
def locked(controls: Controls, idle_gpu: VirtualGpu) -> Controls:
    """At 990 MHz, and at work."""
    controls.write("sm_mhz", 990.0)
    idle_gpu.submit(HARD, pid=7)
    idle_gpu.time.sleep(5.0)
    return controls


def test_a_lock_is_inferred_and_whose_it_is_is_said(locked: Controls) -> None:
    nobodys = only(set_silently(locked, answering(), 1))
    assert nobodys.says.startswith("990 of 1980 MHz under load, neither heat nor power: somebody has locked it")
    assert nobodys.do == "if it is nobody's, as root: 'nvidia-smi -i 1 -rgc'"
    leased = only(set_silently(locked, answering(lease(locked.uuid, "sm_mhz", 990.0)), 1))
    assert (leased.ok, leased.says) == (True, "990 of 1980 MHz under load, by a lease of uid 7 pid 42 (x)")
    stands = replace(answering(), kept={locked.uuid: Record(locked.uuid, standing={"sm_mhz": 990.0})})
    assert "'joulewise stand' keeps" in only(set_silently(locked, stands, 1)).says
    left = replace(answering(), owed=frozenset({locked.uuid}))
    assert only(set_silently(locked, left, 1)).do == "as root: 'joulewise restore'"
    assert "perhaps by joulewise: no daemon answers" in only(set_silently(locked, Control(), 1)).says


def test_a_lock_that_a_living_process_keeps_without_the_daemon_is_its_own(locked: Controls) -> None:
    entry = replace(Entry.new("sm_mhz", None, Owner("lease-1", 7, 1, "x"), None), wrote=(990.0,))
    kept = {locked.uuid: Record(locked.uuid, {"sm_mhz": entry}, keeper=1)}
    assert "MHz under load, by a lease of" in only(set_silently(locked, Control(kept=kept), 0)).says


def test_a_baseline_of_the_site_is_no_lock_of_somebody_s(locked: Controls) -> None:
    site = Policy(baselines={locked.uuid: Setting(sm_mhz=990.0)})
    assert set_silently(locked, replace(answering(), policy=site), 0) == []


@pytest.mark.parametrize(
    ("users", "uid", "told"),
    [
        ((), 7, None),
        ((7, 7), 7, None),
        ((0,), 0, None),
        ((7,), 0, None),
        ((7, -1), 7, "shared with somebody who cannot be seen from here: read only"),
        ((7, 0), 7, "shared with root: read only"),
        ((99998, 99999), 0, "root may set it, but it hits uid 99998, uid 99999"),
    ],
)
def test_a_gpu_with_several_users_is_read_only_for_each_and_root_is_told(
    users: tuple[int, ...], uid: int, told: str | None
) -> None:
    found = shared(Seen(tuple(enumerate(users)), False), uid)
    assert (only(found).says.startswith(told) if told else found == []) is True
    assert shared(Seen(None, False), uid) == []
