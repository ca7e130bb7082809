"""The keeper by cases: what it saves, what it says, what it leaves alone. Random lives are in test_keeper_model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from joulewise.core.errors import GpuLost, NotPermitted, NotSaved, Unsupported
from joulewise.core.knob import Setting
from joulewise.core.timeline import VirtualTime
from joulewise.device.keeper import Keeper
from joulewise.device.lease import Ending, Owner, Restored
from joulewise.device.node import NodeClient, RunningNode
from joulewise.device.nvml_controls import NvmlControls
from joulewise.device.saved import PERSISTENCE, Memory, Saved
from joulewise.device.virtual import VirtualGpu
from joulewise.device.virtual_controls import VirtualControls
from joulewise.model import catalog
from joulewise.model.physics import Load
from tests.device.test_nvml import virtual_node

OWNER = Owner("lease-1", 1000, 42, "python train.py")
BOTH = ("sm_mhz", "power_limit_w")
HARD = Load(gpu_s=1000.0, sm_share=0.9, dynamic_w=250.0)


@pytest.fixture
def gpu() -> VirtualGpu:
    time = VirtualTime(100.0)
    gpu = VirtualGpu(catalog.load("h200"), time=time)
    time.sleep(10.0)
    return gpu


@pytest.fixture
def controls(gpu: VirtualGpu) -> VirtualControls:
    return VirtualControls(gpu)


@pytest.fixture
def keeper(controls: VirtualControls) -> Keeper:
    return Keeper(controls, Memory())


def test_a_cap_that_was_there_is_told_and_comes_back(keeper: Keeper, controls: VirtualControls) -> None:
    controls.write("power_limit_w", 400.5)
    (note,) = keeper.take(BOTH, OWNER)
    assert "400.5 W, below its default of 700 W" in note
    keeper.apply(Setting(power_limit_w=300.0), BOTH)
    clocks, limit = keeper.restore(BOTH)
    assert clocks.ending is Ending.UNCHANGED
    assert (limit.ending, limit.before, limit.wrote, limit.after) == (Ending.RESTORED, 400.5, 300.0, 400.5)
    assert controls.value("power_limit_w") == 400.5


def test_somebody_elses_limit_that_a_later_apply_finds_is_what_comes_back(
    keeper: Keeper, controls: VirtualControls
) -> None:
    keeper.take(BOTH, OWNER)
    keeper.apply(Setting(power_limit_w=300.0), BOTH)
    controls.write("power_limit_w", 555.0)
    effective, notes = keeper.apply(Setting(power_limit_w=310.0), BOTH)
    assert effective == Setting(power_limit_w=310.0)
    assert any("555 W" in note for note in notes)
    keeper.restore(BOTH)
    assert controls.value("power_limit_w") == 555.0


def test_who_sets_exactly_our_value_cannot_be_told_from_us(keeper: Keeper, controls: VirtualControls) -> None:
    keeper.take(BOTH, OWNER)
    keeper.apply(Setting(power_limit_w=300.0), BOTH)
    controls.write("power_limit_w", 300.0)  # theirs, and nobody can know
    assert keeper.look() == ()
    keeper.restore(BOTH)
    assert controls.value("power_limit_w") == 700.0


def test_a_value_that_we_had_set_earlier_is_somebody_elses_now(keeper: Keeper, controls: VirtualControls) -> None:
    keeper.take(BOTH, OWNER)
    for limit_w in (300.0, 400.0, 500.0):
        keeper.apply(Setting(power_limit_w=limit_w), BOTH)
    controls.write("power_limit_w", 300.0)
    assert [notice.kind for notice in keeper.look()] == ["foreign"]
    assert keeper.restore(BOTH)[1].ending is Ending.FOREIGN
    assert controls.value("power_limit_w") == 300.0


def test_a_write_that_a_crash_cut_off_is_ours_whether_it_happened_or_not(controls: VirtualControls) -> None:
    for happened in (False, True):
        memory = Memory()
        keeper = Keeper(controls, memory)
        keeper.take(BOTH, OWNER)
        keeper.apply(Setting(power_limit_w=300.0), BOTH)
        memory.intend("power_limit_w", 400.0, 300.0)
        if happened:
            controls.write("power_limit_w", 400.0)
        restored = Keeper(controls, memory).replay()
        assert [each.ending for each in restored] == [Ending.UNCHANGED, Ending.RESTORED]
        assert controls.value("power_limit_w") == 700.0


def test_entries_from_before_the_boot_are_dropped_and_nothing_is_written(
    keeper: Keeper, controls: VirtualControls
) -> None:
    keeper.take(BOTH, OWNER)
    keeper.apply(Setting(sm_mhz=1200, power_limit_w=300.0), BOTH)
    memory = Memory()
    memory.save(*(replace(entry, boot="another") for entry in keeper.saved.entries.values()))
    restored = Keeper(controls, memory).replay()
    assert {each.ending for each in restored} == {Ending.STALE}
    assert "booted" in restored[0].why
    assert memory.entries == {}
    assert controls.asked() == Setting(sm_mhz=1200, power_limit_w=300.0)  # as somebody's boot script may have set it


def test_a_reload_makes_entries_stale_and_is_told_once(
    keeper: Keeper, controls: VirtualControls, gpu: VirtualGpu
) -> None:
    controls.write("power_limit_w", 612.0)
    keeper.take(BOTH, OWNER)
    keeper.apply(Setting(sm_mhz=1200, power_limit_w=300.0), BOTH)
    gpu.reload_driver()
    (notice,) = keeper.look()
    assert notice.kind == "reload"
    assert keeper.look() == ()
    keeper.apply(Setting(power_limit_w=300.0), BOTH)  # the lease goes on …
    keeper.restore(BOTH)
    assert controls.value("power_limit_w") == 700.0  # … and what the new driver had comes back
    keeper.take(BOTH, OWNER)
    keeper.apply(Setting(sm_mhz=1200, power_limit_w=300.0), BOTH)
    gpu.time.sleep(100.0)
    keeper.look()
    gpu.reload_driver()
    assert {each.ending for each in keeper.restore(BOTH)} == {Ending.STALE}
    assert controls.asked() == Setting()


def test_a_counter_that_costs_milliseconds_is_looked_at_rarely_or_when_something_is_odd(
    keeper: Keeper, controls: VirtualControls, gpu: VirtualGpu
) -> None:
    keeper.take(["sm_mhz"], OWNER)
    keeper.apply(Setting(sm_mhz=1200), ["sm_mhz"])
    gpu.reload_driver()
    assert keeper.look() == ()  # nothing to be seen of a lock, and a look at the counter burns 3.8 ms
    gpu.time.sleep(12.0)
    gpu.reload_driver()  # else the counter has passed the old value by now
    assert [notice.kind for notice in keeper.look()] == ["reload"]
    gpu.time.sleep(1.0)
    keeper.take(["power_limit_w"], OWNER)
    keeper.apply(Setting(power_limit_w=300.0), ["power_limit_w"])
    gpu.reload_driver()
    assert [notice.kind for notice in keeper.look()] == ["reload"]  # the limit gave it away at once


def test_another_lease_hears_of_a_reload_that_the_first_one_ended_with(keeper: Keeper, gpu: VirtualGpu) -> None:
    keeper.take(["sm_mhz"], OWNER)
    keeper.take(["power_limit_w"], OWNER)
    gpu.reload_driver()
    keeper.restore(["sm_mhz"])
    assert [notice.kind for notice in keeper.look()] == ["reload"]


def test_clocks_go_to_where_they_stand_else_to_the_baseline_else_free(
    keeper: Keeper, controls: VirtualControls
) -> None:
    for baseline, standing, ending in (
        (Setting(), None, Ending.RESET),
        (Setting(sm_mhz=1500), None, Ending.BASELINE),
        (Setting(sm_mhz=1500), 1650.0, Ending.STANDING),
    ):
        keeper.baseline = baseline
        keeper.stand("sm_mhz", standing)
        keeper.take(BOTH, OWNER)
        keeper.apply(Setting(sm_mhz=900), BOTH)
        clocks, limit = keeper.restore(BOTH)
        assert (clocks.ending, clocks.after) == (ending, standing or baseline.get("sm_mhz"))
        assert limit.ending is Ending.UNCHANGED
        assert controls.asked().get("sm_mhz") == clocks.after


def test_a_lock_that_the_driver_refused_was_never_ours(
    keeper: Keeper, controls: VirtualControls, gpu: VirtualGpu
) -> None:
    controls.write("sm_mhz", 1005.0)  # somebody's
    keeper.take(BOTH, OWNER)
    gpu.fault(unsupported=frozenset({"sm_clock_set"}))
    with pytest.raises(Unsupported):
        keeper.apply(Setting(sm_mhz=1200), BOTH)
    gpu.clear()
    assert keeper.restore(BOTH)[0].ending is Ending.UNCHANGED
    assert controls.asked() == Setting(sm_mhz=1005)


def test_what_fails_stays_owed_and_can_be_tried_again(
    keeper: Keeper, controls: VirtualControls, gpu: VirtualGpu
) -> None:
    keeper.take(BOTH, OWNER)
    keeper.apply(Setting(sm_mhz=1200, power_limit_w=300.0), BOTH)
    gpu.fault(lost=True)
    for _ in range(2):
        restored = keeper.restore(BOTH)
        assert {each.ending for each in restored} == {Ending.FAILED}
        assert "fell off the bus" in restored[0].why
    with pytest.raises(GpuLost):
        keeper.take(["memory_mhz"], OWNER)
    gpu.clear()
    assert [each.ending for each in keeper.restore(BOTH)] == [Ending.RESET, Ending.RESTORED]
    assert controls.asked().get("sm_mhz") is None


def test_a_restore_in_the_name_of_a_lease_leaves_what_others_have(keeper: Keeper, controls: VirtualControls) -> None:
    keeper.take(BOTH, OWNER)
    keeper.restore(BOTH)
    keeper.take(BOTH, replace(OWNER, lease="lease-2"))
    keeper.apply(Setting(sm_mhz=1200, power_limit_w=300.0), BOTH)
    assert keeper.restore(BOTH, "lease-1") == ()  # tried again late, when they are in other hands
    assert controls.asked() == Setting(sm_mhz=1200, power_limit_w=300)
    assert [each.ending for each in keeper.restore(BOTH, "lease-2")] == [Ending.RESET, Ending.RESTORED]


class LostOnTheWay(VirtualControls):
    """A GPU that falls off the bus in the middle of a certain call, which has its effect all the same."""

    falls_at: tuple[str, str] | None = None

    def write(self, knob: str, value: float) -> None:
        super().write(knob, value)
        self._fall("write", knob)

    def enforced_limit_w(self) -> float | None:
        self._fall("read", "enforced")
        return super().enforced_limit_w()

    def _fall(self, *where: str) -> None:
        if where == self.falls_at:
            self._gpu.fault(lost=True)
            self.read()


@pytest.mark.parametrize("where", [("write", "power_limit_w"), ("read", "enforced")])
def test_an_apply_that_cannot_go_back_says_so_and_its_knobs_are_astray(gpu: VirtualGpu, where: tuple[str, str]) -> None:
    controls = LostOnTheWay(gpu)
    keeper = Keeper(controls, Memory())
    keeper.take(BOTH, OWNER)
    controls.falls_at = where
    with pytest.raises(GpuLost, match=r"going back failed too for power_limit_w.*for sm_mhz"):
        keeper.apply(Setting(sm_mhz=1200, power_limit_w=300.0), BOTH)
    assert keeper.astray == set(BOTH)
    keeper.restore(BOTH)
    assert keeper.astray == set(BOTH)  # as long as it is lost
    gpu.clear()
    controls.falls_at = None
    assert controls.asked() == Setting(sm_mhz=1200, power_limit_w=300)
    keeper.apply(Setting(sm_mhz=900), ["sm_mhz"])
    assert keeper.astray == {"power_limit_w"}
    assert [each.ending for each in keeper.restore(BOTH)] == [Ending.RESET, Ending.RESTORED]
    assert keeper.astray == set()


def test_an_apply_that_was_refused_and_undone_leaves_nothing_astray(keeper: Keeper, gpu: VirtualGpu) -> None:
    keeper.take(BOTH, OWNER)
    gpu.fault(unsupported=frozenset({"limit_set"}))
    with pytest.raises(Unsupported) as refused:
        keeper.apply(Setting(sm_mhz=1200, power_limit_w=300.0), BOTH)
    assert "going back" not in str(refused.value)
    assert keeper.astray == set()


def test_who_knows_no_baseline_brings_clocks_to_the_one_that_their_taker_knew(controls: VirtualControls) -> None:
    for now, after_mhz in ((Setting(), 1500.0), (Setting(sm_mhz=1650), 1650.0)):
        memory = Memory()
        keeper = Keeper(controls, memory, baseline=Setting(sm_mhz=1500))
        keeper.take(BOTH, OWNER)
        keeper.apply(Setting(sm_mhz=900), BOTH)
        clocks, _ = Keeper(controls, memory, baseline=now).replay()
        assert (clocks.ending, clocks.after) == (Ending.BASELINE, after_mhz)
        assert controls.asked() == Setting(sm_mhz=after_mhz)


def test_the_baseline_that_a_taker_knew_outlives_a_reload(controls: VirtualControls, gpu: VirtualGpu) -> None:
    memory = Memory()
    keeper = Keeper(controls, memory, baseline=Setting(sm_mhz=1500))
    keeper.take(BOTH, OWNER)
    keeper.apply(Setting(power_limit_w=300.0), BOTH)
    gpu.reload_driver()
    assert [notice.kind for notice in keeper.look()] == ["reload"]
    keeper.apply(Setting(sm_mhz=900), BOTH)
    Keeper(controls, memory).replay()
    assert controls.asked() == Setting(sm_mhz=1500)


def test_without_a_counter_it_works_too(gpu: VirtualGpu, keeper: Keeper) -> None:
    gpu.fault(unsupported=frozenset({"energy_counter"}))
    keeper.take(BOTH, OWNER)
    assert keeper.saved.entries["sm_mhz"].counter_j is None
    keeper.apply(Setting(power_limit_w=300.0), BOTH)
    assert keeper.look() == ()
    assert keeper.restore(BOTH)[1].ending is Ending.RESTORED


def test_a_limit_in_force_below_the_one_asked_for_is_told(keeper: Keeper, gpu: VirtualGpu) -> None:
    gpu.hold_below(500.0)
    assert any("500 W is in force" in note for note in keeper.take(BOTH, OWNER))
    effective, notes = keeper.apply(Setting(power_limit_w=600.0), BOTH)
    assert effective == Setting(power_limit_w=500.0)
    assert any("below the 600 W asked for" in note for note in notes)
    assert keeper.look() == ()  # nobody has changed what was asked for
    assert keeper.apply(Setting(power_limit_w=400.0), BOTH) == (Setting(power_limit_w=400.0), ())
    assert keeper.restore(BOTH)[1].after == 700.0


def test_a_foreign_lock_is_inferred_under_load_only_and_said_to_be(
    keeper: Keeper, controls: VirtualControls, gpu: VirtualGpu
) -> None:
    controls.write("sm_mhz", 1005.0)
    gpu.time.sleep(5.0)
    assert keeper.infer() is None  # at rest nothing shows
    gpu.submit(HARD, pid=7)
    gpu.time.sleep(5.0)
    inferred = keeper.infer()
    assert inferred is not None
    assert inferred.kind == "inferred"
    assert inferred.found == 1005.0
    assert "inferred" in inferred.says
    assert inferred.says in keeper.take(BOTH, OWNER)
    keeper.apply(Setting(sm_mhz=1200), BOTH)
    gpu.time.sleep(5.0)
    assert keeper.infer() is None  # ours


def test_a_lock_of_ours_that_somebody_lifts_is_inferred_from_the_second_look_on(
    keeper: Keeper, controls: VirtualControls, gpu: VirtualGpu
) -> None:
    gpu.submit(HARD, pid=7)
    keeper.take(BOTH, OWNER)
    keeper.apply(Setting(sm_mhz=900), BOTH)
    for _ in range(3):
        gpu.time.sleep(1.0)
        assert keeper.look() == ()
    controls.reset("sm_mhz")
    told = []
    for _ in range(5):
        gpu.time.sleep(1.0)
        told.append([notice.kind for notice in keeper.look()])
    assert told == [[], ["inferred"], [], [], []]


def test_a_lost_file_frees_the_clocks_once_and_owes_the_limit(controls: VirtualControls, tmp_path: Path) -> None:
    controls.write("sm_mhz", 900.0)
    controls.write("power_limit_w", 300.0)
    (tmp_path / f"{controls.uuid}.jsonl").write_bytes(b"garbage\n")
    saved = Saved.open(tmp_path, controls.uuid)
    keeper = Keeper(controls, saved, baseline=Setting(sm_mhz=1500))
    endings = {each.knob: each for each in keeper.replay()}
    assert endings["sm_mhz"].ending is Ending.BASELINE
    assert endings["memory_mhz"].ending is Ending.RESET
    limit = endings["power_limit_w"]
    assert (limit.ending, limit.after) == (Ending.FAILED, 300.0)
    assert "it shows 300 W (by default 700 W)" in limit.why
    assert f"'joulewise restore --forget {controls.uuid}'" in limit.why
    assert controls.asked() == Setting(sm_mhz=1500, power_limit_w=300)
    saved.close()
    assert (tmp_path / f"{controls.uuid}.jsonl.corrupt-1").read_bytes() == b"garbage\n"
    controls.write("sm_mhz", 1200.0)  # an admin's, meanwhile
    saved = Saved.open(tmp_path, controls.uuid)
    assert [(each.knob, each.ending) for each in Keeper(controls, saved).replay()] == [("power_limit_w", Ending.FAILED)]
    assert controls.asked() == Setting(sm_mhz=1200, power_limit_w=300)
    saved.close()


def test_a_lost_file_is_owed_until_somebody_has_seen_to_it_and_no_lease_is_given_meanwhile(
    controls: VirtualControls, gpu: VirtualGpu, tmp_path: Path
) -> None:
    controls.write("sm_mhz", 900.0)
    (tmp_path / f"{controls.uuid}.jsonl").write_bytes(b"garbage\n")
    for fault in ({"lost": True}, {"no_permission": True}, None):
        if fault is not None:
            gpu.fault(**fault)
        saved = Saved.open(tmp_path, controls.uuid)
        keeper = Keeper(controls, saved)
        clocks = {each.ending for each in keeper.replay() if each.knob != "power_limit_w"}
        assert clocks == ({Ending.RESET} if fault is None else {Ending.FAILED})
        with pytest.raises((GpuLost, NotSaved)):
            keeper.take(BOTH, OWNER)  # over the one sign that something is owed
        saved.close()
        gpu.clear()
        assert Saved.known(tmp_path) == (controls.uuid,)
    assert controls.asked().get("sm_mhz") is None
    saved = Saved.open(tmp_path, controls.uuid)
    saved.set_aside()
    keeper = Keeper(controls, saved)
    keeper.take(["power_limit_w"], OWNER)
    keeper.restore(["power_limit_w"])
    saved.close()
    assert Saved.known(tmp_path) == ()


def killed_with(controls: VirtualControls, folder: Path, *settings: Setting) -> Path:
    """The file that a process leaves that is killed while its lease is open."""
    saved = Saved.open(folder, controls.uuid)
    keeper = Keeper(controls, saved)
    keeper.take(BOTH, OWNER)
    for setting in settings:
        keeper.apply(setting, BOTH)
    saved.close()
    return folder / f"{controls.uuid}.jsonl"


def replayed(controls: VirtualControls, folder: Path) -> dict[str, Restored]:
    saved = Saved.open(folder, controls.uuid)
    try:
        return {each.knob: each for each in Keeper(controls, saved).replay()}
    finally:
        saved.close()


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_what_lost_lines_had_announced_is_taken_for_ours(controls: VirtualControls, tmp_path: Path, lost: int) -> None:
    controls.write("power_limit_w", 650.0)
    path = killed_with(controls, tmp_path, Setting(power_limit_w=300.0, sm_mhz=900.0), Setting(power_limit_w=400.0))
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-lost]))
    given = replayed(controls, tmp_path)
    assert given["power_limit_w"].ending is Ending.RESTORED
    assert controls.asked() == Setting(power_limit_w=650.0)
    assert Saved.known(tmp_path) == ()
    assert len(list(tmp_path.glob("*.corrupt-1"))) == 1


def test_the_limit_of_a_whole_file_that_it_does_not_explain_is_somebody_elses(
    controls: VirtualControls, tmp_path: Path
) -> None:
    killed_with(controls, tmp_path, Setting(power_limit_w=300.0))
    controls.write("power_limit_w", 250.0)
    assert replayed(controls, tmp_path)["power_limit_w"].ending is Ending.FOREIGN
    assert controls.value("power_limit_w") == 250.0


def test_a_disk_that_fills_in_the_middle_leaves_the_setting_from_before(controls: VirtualControls) -> None:
    class Filling(Memory):
        """Has room for so many announcements."""

        room = 3

        def intend(self, knob: str, value: float, over: float | None = None) -> None:
            if self.room == 0:
                raise NotSaved("no space left")
            self.room -= 1
            super().intend(knob, value, over)

    keeper = Keeper(controls, Filling())
    keeper.take(BOTH, OWNER)
    keeper.apply(Setting(sm_mhz=900, power_limit_w=300.0), BOTH)
    with pytest.raises(NotSaved, match=r"^no space left$"):
        keeper.apply(Setting(sm_mhz=1200, power_limit_w=400.0), BOTH)  # room for the clock alone
    assert controls.asked() == Setting(sm_mhz=900, power_limit_w=300)
    keeper.restore(BOTH)
    assert controls.asked().get("sm_mhz") is None
    assert controls.value("power_limit_w") == 700.0


def test_where_nothing_can_be_saved_nothing_is_set(controls: VirtualControls, tmp_path: Path) -> None:
    saved = Saved.open(tmp_path, controls.uuid)
    keeper = Keeper(controls, saved)
    keeper.take(BOTH, OWNER)
    keeper.apply(Setting(power_limit_w=300.0), BOTH)
    os.close(saved._fd)  # the disk is gone
    saved._fd = -1
    with pytest.raises(NotSaved):
        keeper.apply(Setting(sm_mhz=1200, power_limit_w=400.0), BOTH)
    assert controls.asked() == Setting(power_limit_w=300)
    assert [each.ending for each in keeper.restore(BOTH)] == [Ending.UNCHANGED, Ending.RESTORED]
    saved.close()


# Persistence mode is the driver's, so these go through the virtual NVML.


@pytest.fixture(scope="module")
def node(virtual_nvml: None, may_set: None) -> Iterator[RunningNode]:
    with virtual_node("sim:h200") as node:
        yield node


@pytest.fixture
def off(node: RunningNode) -> Iterator[NvmlControls]:
    """A GPU whose persistence mode is off."""
    with node.client() as client:
        controls = NvmlControls.all()[0]
        _persistence(client, on=False)
        assert controls.persistence() is False
        yield controls
        _persistence(client, on=True)


def _persistence(client: NodeClient, *, on: bool) -> None:
    client.fault(0, "persistence", on=on)


def test_persistence_mode_off_is_told(off: NvmlControls) -> None:
    keeper = Keeper(off, Memory())
    assert any("persistence mode is off" in note for note in keeper.take(BOTH, OWNER))
    keeper.restore(BOTH)
    assert off.persistence() is False


def test_persistence_mode_off_is_refused_where_the_site_says_so(off: NvmlControls) -> None:
    keeper = Keeper(off, Memory(), persistence="refuse")
    with pytest.raises(NotPermitted, match="nvidia-smi -pm 1"):
        keeper.take(BOTH, OWNER)
    assert keeper.saved.entries == {}


def test_persistence_mode_is_turned_on_for_leases_and_given_back_with_the_last(off: NvmlControls) -> None:
    keeper = Keeper(off, Memory(), persistence="set")
    assert any("it is on while" in note for note in keeper.take(["sm_mhz"], OWNER))
    assert keeper.take(["power_limit_w"], OWNER) == ()
    assert off.persistence() is True
    assert [each.knob for each in keeper.restore(["sm_mhz"])] == ["sm_mhz"]
    assert off.persistence() is True
    _, persistence = keeper.restore(["power_limit_w"])
    assert (persistence.knob, persistence.ending) == (PERSISTENCE, Ending.RESTORED)
    assert off.persistence() is False
    assert keeper.saved.entries == {}


def test_persistence_mode_comes_back_after_a_crash(off: NvmlControls, tmp_path: Path) -> None:
    saved = Saved.open(tmp_path, off.uuid)
    Keeper(off, saved, persistence="set").take(["sm_mhz"], OWNER)
    saved.close()
    assert off.persistence() is True
    saved = Saved.open(tmp_path, off.uuid)
    endings = {each.knob: each.ending for each in Keeper(off, saved).replay()}
    assert endings == {"sm_mhz": Ending.UNCHANGED, PERSISTENCE: Ending.RESTORED}
    assert off.persistence() is False
    saved.close()
