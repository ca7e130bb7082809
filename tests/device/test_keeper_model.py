"""The keeper against a reference model: random lives of leases, other people, deaths, reloads and lost GPUs.

The laws that the model states, however it all went: when nobody holds the limit, it is what somebody *else* last set;
when nobody holds a clock that a lease has turned, it is where it stands, else at the site's baseline, else unlocked.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from joulewise.core.errors import GpuLost, LeaseTaken, NotPermitted, NotSaved, OutOfRange, Unsupported
from joulewise.core.knob import Setting
from joulewise.core.timeline import VirtualTime
from joulewise.device.keeper import Keeper
from joulewise.device.lease import Ending, Owner
from joulewise.device.saved import Memory, Saved
from joulewise.device.virtual import VirtualGpu
from joulewise.device.virtual_controls import VirtualControls
from joulewise.model import catalog
from tests.tiers import examples

H200 = catalog.load("h200")
LIMITS_W = st.sampled_from([200.0, 300.0, 300.5, 412.0, 650.0])
THEIRS_W = st.sampled_from([211.125, 333.25, 555.5, 612.345, 700.0])
"""Never one of ours, which nobody could tell apart: see test_keeper."""
CLOCKS_MHZ = st.sampled_from([345.0, 900.0, 1200.0, 1980.0])
KNOBS = st.sampled_from(["sm_mhz", "memory_mhz", "power_limit_w"])
MEMORY_MHZ = H200.space.knobs["memory_mhz"].low
CLOCKS = ("sm_mhz", "memory_mhz")


class Lives(RuleBasedStateMachine):
    """Three knobs of one GPU, each free or leased by somebody; time passes a little with every act."""

    on_disk = False

    def __init__(self) -> None:
        super().__init__()
        self.time = VirtualTime(100.0)
        # A counter that costs nothing is looked at each time, so that the model need not know when.
        self.gpu = VirtualGpu(H200, time=self.time, sensors=replace(H200.sensors, counter_call_s=0.0))
        self.controls = VirtualControls(self.gpu)
        self.time.sleep(10.0)  # some joules, so that a reload shows
        self.directory = Path(tempfile.mkdtemp()) if self.on_disk else None
        self.saved: Memory = Memory() if self.directory is None else Saved.open(self.directory, self.gpu.info.uuid)
        self.baseline = Setting()
        # The model.
        self.lost = False
        self.theirs_w = 700.0
        self.taken: set[str] = set()
        self.owed: set[str] = set()
        """Ended, but not given back: the GPU was lost then."""
        self.ours: dict[str, float] = {}
        """Clocks that a lease has locked now."""
        self.turned: set[str] = set()
        """Clocks that a lease has turned at all."""
        self.locks: dict[str, float | None] = dict.fromkeys(CLOCKS)
        self.standing: dict[str, float] = {}
        self.limit_w: float | None = None
        """What the lease has set; None: as it was."""
        self.seen_j: float | None = None
        """The energy counter when the keeper last looked at it, and when it saved each knob: a reload shows by them."""
        self.saved_j: dict[str, float] = {}

    @initialize(baseline=st.booleans())
    def start(self, baseline: bool) -> None:
        if baseline:
            self.baseline = Setting(sm_mhz=1500.0)
        self.keeper = Keeper(self.controls, self.saved, baseline=self.baseline)

    def teardown(self) -> None:
        self.saved.close()
        if self.directory is not None:
            shutil.rmtree(self.directory)

    def base(self, knob: str) -> float | None:
        return self.standing.get(knob, self.baseline.get(knob))

    def counter_j(self) -> float:
        return self.gpu.energy().energy_j

    def sees_reload(self) -> bool:
        """Whether the keeper, looking now, sees that the driver was started anew."""
        if self.lost:
            return False
        last_j, self.seen_j = self.seen_j, self.counter_j()
        return last_j is not None and self.seen_j < last_j - 1

    def start_anew(self) -> None:
        """What the keeper does then, if knobs are taken."""
        if self.taken | self.owed:
            for knob in CLOCKS:
                if self.base(knob) is not None or knob in self.turned:
                    self.locks[knob] = self.base(knob)
            self.turned.clear()
            self.ours.clear()
            self.saved_j = dict.fromkeys(self.taken | self.owed, self.counter_j())

    def heed_foreign_limit(self, knobs: set[str]) -> None:
        """Whoever is about to set a limit and finds one that is not its own looks for a reload first."""
        entry = self.saved.entries.get("power_limit_w")
        theirs = entry is not None and self.gpu.asked_limit_w not in (entry.before, *entry.wrote)
        if "power_limit_w" in knobs and theirs and self.sees_reload():
            self.start_anew()

    # What leases do.

    @rule(knobs=st.sets(KNOBS, min_size=1))
    def take(self, knobs: set[str]) -> None:
        owner = Owner("lease", 1000, 42)
        if knobs & (self.taken | self.owed):
            with pytest.raises(LeaseTaken):
                self.keeper.take(knobs, owner)
        elif self.lost:
            with pytest.raises(GpuLost):
                self.keeper.take(knobs, owner)
        else:
            self.keeper.take(knobs, owner)
            if self.sees_reload():
                self.start_anew()
            self.taken |= knobs
            self.saved_j |= dict.fromkeys(knobs, self.counter_j())

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def apply(self, data: st.DataObject) -> None:
        knobs = data.draw(st.sets(st.sampled_from(sorted(self.taken)), min_size=1))
        named = data.draw(st.sets(st.sampled_from(sorted(knobs))))
        values = {"sm_mhz": CLOCKS_MHZ, "memory_mhz": st.just(MEMORY_MHZ), "power_limit_w": LIMITS_W}
        setting = Setting(**{knob: data.draw(values[knob]) for knob in sorted(named)})
        if self.lost and (named or "power_limit_w" in knobs or knobs & self.ours.keys()):
            with pytest.raises(GpuLost):
                self.keeper.apply(setting, knobs)
            # A limit is looked at first. The first clock that was tried may have been written, for all anybody knows.
            for knob in () if "power_limit_w" in knobs else (each for each in CLOCKS if each in knobs):
                if knob in setting:
                    self.ours.setdefault(knob, setting[knob])
                    self.turned.add(knob)
                if knob in self.ours:
                    break
            return
        self.heed_foreign_limit(knobs)
        effective, _ = self.keeper.apply(setting, knobs)
        for knob in knobs & set(CLOCKS):
            if knob in setting:
                self.locks[knob] = self.ours[knob] = setting[knob]
                self.turned.add(knob)
            elif knob in self.ours:
                del self.ours[knob]
                self.locks[knob] = self.base(knob)
        if "power_limit_w" in knobs:
            self.limit_w = setting.get("power_limit_w")
            assert effective["power_limit_w"] == (self.limit_w or self.theirs_w)
        for knob in named & set(CLOCKS):
            assert effective[knob] == setting[knob]

    @precondition(lambda self: self.taken and not self.lost)
    @rule(bad=st.sampled_from([199.0, 701.0, -1.0, 0.0, float("nan"), float("inf"), 1e300]))
    def apply_nonsense(self, bad: float) -> None:
        with pytest.raises((OutOfRange, NotPermitted)):
            self.keeper.apply(Setting(power_limit_w=bad), self.taken)

    @precondition(lambda self: {"sm_mhz", "power_limit_w"} <= self.taken and not self.lost)
    @rule(clock_mhz=CLOCKS_MHZ, limit_w=LIMITS_W)
    def apply_where_the_driver_refuses_a_part(self, clock_mhz: float, limit_w: float) -> None:
        if self.gpu.asked_limit_w == limit_w:
            return
        self.gpu.fault(unsupported=frozenset({"limit_set"}))
        knobs = {"sm_mhz", "power_limit_w"}
        if self.controls.asked().get("power_limit_w") is None:  # else not even the clock can be written here
            self.heed_foreign_limit(knobs)
            with pytest.raises(Unsupported, match="power_limit_w"):
                self.keeper.apply(Setting(sm_mhz=clock_mhz, power_limit_w=limit_w), knobs)
            self.turned.add("sm_mhz")
            self.locks["sm_mhz"] = self.ours.get("sm_mhz", self.base("sm_mhz"))
        self.gpu.clear()

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        knobs = data.draw(st.sets(st.sampled_from(sorted(self.taken)), min_size=1))
        self.check(self.keeper.restore(knobs), knobs)

    @precondition(lambda self: self.owed)
    @rule()
    def try_again(self) -> None:
        self.check(self.keeper.restore(self.owed), set(self.owed))

    def check(self, restored: tuple[object, ...], knobs: set[str]) -> None:
        """Let the model give ``knobs`` back, and hold it against what was said."""
        endings = {each.knob: each.ending for each in restored}  # type: ignore[attr-defined]
        assert set(endings) == knobs
        reloaded = self.sees_reload()
        for knob in knobs:
            stale = reloaded or (self.seen_j is not None and self.seen_j < self.saved_j[knob] - 1)
            ending = endings[knob]
            self.taken.discard(knob)
            untouched = knob in CLOCKS and knob not in self.turned
            if self.lost and not untouched and not stale:
                assert ending is Ending.FAILED
                self.owed.add(knob)
                continue
            self.owed.discard(knob)
            self.ours.pop(knob, None)
            if stale and not (knob == "power_limit_w" and self.limit_w is not None):  # written since, then
                assert ending is Ending.STALE
                if knob in CLOCKS and (self.base(knob) is not None or not untouched):
                    self.locks[knob] = self.base(knob)
            elif untouched:
                assert ending is Ending.UNCHANGED
            elif knob in CLOCKS:
                self.locks[knob] = self.base(knob)
                stands, declared = knob in self.standing, knob in self.baseline
                assert ending is (Ending.STANDING if stands else Ending.BASELINE if declared else Ending.RESET)
            else:
                assert ending in (Ending.RESTORED, Ending.UNCHANGED, Ending.FOREIGN)
            self.turned.discard(knob)
            if knob == "power_limit_w":
                self.limit_w = None
        if reloaded:
            self.start_anew()

    # What happens to them.

    @rule()
    def crash(self) -> None:
        """The keeper is gone without a word; another one finds what is owed."""
        if self.directory is not None:
            self.saved.close()
            self.saved = Saved.open(self.directory, self.gpu.info.uuid)
        self.keeper = Keeper(self.controls, self.saved, baseline=self.baseline)
        self.seen_j = None
        everything = self.taken | self.owed
        self.check(self.keeper.replay(), everything)
        if not self.lost:
            for knob in self.standing:
                self.locks[knob] = self.standing[knob]

    @precondition(lambda self: not self.lost)
    @rule(limit_w=THEIRS_W)
    def somebody_else_sets_a_limit(self, limit_w: float) -> None:
        self.controls.write("power_limit_w", limit_w)
        self.theirs_w = limit_w
        self.limit_w = None

    @precondition(lambda self: not self.lost)
    @rule(knob=st.sampled_from(CLOCKS), lock=st.booleans())
    def somebody_else_locks_a_clock(self, knob: str, lock: bool) -> None:
        value = MEMORY_MHZ if knob == "memory_mhz" else 1005.0
        if lock:
            self.controls.write(knob, value)
        else:
            self.controls.reset(knob)
        self.locks[knob] = value if lock else None

    @precondition(lambda self: not self.lost)
    @rule()
    def the_driver_is_started_anew(self) -> None:
        self.gpu.reload_driver()
        self.locks = dict.fromkeys(CLOCKS)
        self.theirs_w, self.limit_w = 700.0, None

    @precondition(lambda self: not self.lost)
    @rule()
    def the_gpu_is_lost(self) -> None:
        self.gpu.fault(lost=True)
        self.lost = True

    @precondition(lambda self: self.lost)
    @rule()
    def the_gpu_is_back(self) -> None:
        self.gpu.clear()
        self.lost = False

    @precondition(lambda self: not self.lost)
    @rule()
    def look(self) -> None:
        kinds = [notice.kind for notice in self.keeper.look()]
        if self.taken | self.owed and self.sees_reload():
            assert "reload" in kinds
            self.start_anew()
        assert self.keeper.look() == ()

    @precondition(lambda self: not self.lost)
    @rule(value=st.sampled_from([None, 1305.0]))
    def the_admin_lets_a_clock_stand(self, value: float | None) -> None:
        self.keeper.stand("sm_mhz", value)
        if "sm_mhz" in self.taken | self.owed and (value or self.standing):
            self.turned.add("sm_mhz")  # the end of the lease has to bring it there
        if value is None:
            self.standing.pop("sm_mhz", None)
        else:
            self.standing["sm_mhz"] = value
        if "sm_mhz" not in self.taken | self.owed:
            self.locks["sm_mhz"] = self.base("sm_mhz")

    # What always holds.

    @invariant()
    def a_little_time_passes(self) -> None:
        self.time.sleep(3.0)

    @invariant()
    def the_limit_is_theirs_unless_a_lease_has_set_it(self) -> None:
        if "power_limit_w" not in self.owed:
            expected_w = self.limit_w if "power_limit_w" in self.taken and self.limit_w is not None else self.theirs_w
            assert self.gpu.asked_limit_w == expected_w

    @invariant()
    def clocks_are_where_they_belong(self) -> None:
        asked = self.controls.asked()
        for knob in CLOCKS:
            if knob not in self.owed:
                assert asked.get(knob) == self.locks[knob], knob

    @invariant()
    def what_is_kept_is_what_is_owed(self) -> None:
        assert set(self.saved.entries) == self.taken | self.owed
        if self.directory is not None:
            assert bool(Saved.known(self.directory)) == bool(self.taken | self.owed | self.standing.keys())


class LivesOnDisk(Lives):
    on_disk = True


_checks = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
TestInMemory = Lives.TestCase
TestInMemory.settings = settings(
    max_examples=examples(120, 0.4), stateful_step_count=40, deadline=None, suppress_health_check=_checks
)
TestOnDisk = LivesOnDisk.TestCase
TestOnDisk.settings = settings(
    max_examples=examples(25, 0.4), stateful_step_count=40, deadline=None, suppress_health_check=_checks
)
TestInMemory.pytestmark = TestOnDisk.pytestmark = pytest.mark.sampled


def test_a_knob_that_nobody_has_taken_cannot_be_applied() -> None:
    controls = VirtualControls(VirtualGpu(H200, time=VirtualTime()))
    keeper = Keeper(controls, Memory())
    with pytest.raises(NotSaved, match="take a lease"):
        keeper.apply(Setting(power_limit_w=300.0), ["power_limit_w"])
    assert controls.asked() == Setting()
