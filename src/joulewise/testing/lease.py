# ruff: noqa: D102 (the names of the tests are their sentences)
"""What every ``Lease`` must do, as tests: inherit ``LeaseConformance`` and give it a ``stage`` fixture.

The stage has two GPUs of one model with the knobs sm_mhz and power_limit_w, takes leases on them, and looks at the
hardware by another way than the lease's, which is how a lock that no driver shows can be checked.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import pytest

from joulewise.core.errors import (
    GpuError,
    JoulewiseError,
    LeaseLost,
    LeaseTaken,
    NoGpu,
    NotNow,
    NotPermitted,
    OutOfRange,
    Unsupported,
)
from joulewise.core.knob import Setting, Space
from joulewise.core.timeline import TimeSource
from joulewise.device.lease import Ending, Lease, Notice

BOTH = frozenset({"sm_mhz", "power_limit_w"})
PATIENCE_S = 10.0
"""How long a notice may take to arrive, in the stage's time; in life it is the poll period of 1 s."""


class LeaseStage(Protocol):
    """Two GPUs, both at rest and unlocked."""

    time: TimeSource
    uuids: Sequence[str]
    space: Space
    """Of either GPU."""

    def take(self, uuids: Sequence[str], knobs: Collection[str]) -> Lease:
        """A lease, as a caller in life would get it."""
        ...

    def limit_w(self, uuid: str) -> float:
        """The limit that was last requested of a GPU."""
        ...

    def ceiling_mhz(self, uuid: str) -> float | None:
        """The ceiling of its SM clock; None: not locked."""
        ...

    def set_limit(self, uuid: str, limit_w: float) -> None:
        """As somebody else would, past all leases."""
        ...

    def refuse(self, uuid: str, on: bool) -> None:
        """Let the driver of a GPU refuse every write, or take them again."""
        ...


class LeaseConformance:
    """Inherit and override ``stage``."""

    @pytest.fixture
    def stage(self) -> LeaseStage:
        """The GPUs, and the way to lease them."""
        raise NotImplementedError("override the fixture 'stage'")

    def test_it_is_a_lease_and_says_what_it_covers(self, stage: LeaseStage) -> None:
        with stage.take(stage.uuids, BOTH) as lease:
            assert isinstance(lease, Lease)
            assert lease.name.strip() == lease.name != ""
            assert set(lease.gpus) == set(stage.uuids)
            assert lease.knobs == BOTH
            assert lease.alive
            lease.beat()
            for note in lease.notes:
                assert note.strip()
                assert "\n" not in note

    def test_taking_alone_changes_nothing(self, stage: LeaseStage) -> None:
        before_w = stage.limit_w(stage.uuids[0])
        with stage.take(stage.uuids, BOTH):
            assert stage.limit_w(stage.uuids[0]) == before_w
            assert stage.ceiling_mhz(stage.uuids[0]) is None

    def test_what_is_applied_is_set_on_every_gpu_and_told(self, stage: LeaseStage) -> None:
        wanted = _setting(stage)
        with stage.take(stage.uuids, BOTH) as lease:
            applied = lease.apply(wanted)
            assert applied.requested == wanted
            assert applied.effective == dict.fromkeys(stage.uuids, wanted)
            for uuid in stage.uuids:
                assert stage.limit_w(uuid) == wanted["power_limit_w"]
                assert stage.ceiling_mhz(uuid) == wanted["sm_mhz"]

    def test_a_limit_comes_back_exactly_whatever_it_was(self, stage: LeaseStage) -> None:
        odd_w = stage.space.knobs["power_limit_w"].high - 87.655
        uuid = stage.uuids[0]
        stage.set_limit(uuid, odd_w)
        with stage.take([uuid], BOTH) as lease:
            lease.apply(_setting(stage))
            ended = lease.release()
        assert stage.limit_w(uuid) == pytest.approx(odd_w, abs=1e-9)
        assert stage.ceiling_mhz(uuid) is None
        endings = {each.knob: each.ending for each in ended.restored}
        assert endings == {"power_limit_w": Ending.RESTORED, "sm_mhz": Ending.RESET}
        assert ended.clean

    def test_a_knob_that_is_not_named_goes_back_to_what_was_there(self, stage: LeaseStage) -> None:
        uuid = stage.uuids[0]
        before_w = stage.limit_w(uuid)
        with stage.take([uuid], BOTH) as lease:
            lease.apply(_setting(stage))
            lease.apply(Setting(sm_mhz=_setting(stage)["sm_mhz"]))
            assert stage.limit_w(uuid) == before_w
            assert stage.ceiling_mhz(uuid) is not None
            lease.apply()
            assert stage.ceiling_mhz(uuid) is None

    def test_some_of_its_gpus_can_be_set_apart(self, stage: LeaseStage) -> None:
        first, second = stage.uuids
        before_w = stage.limit_w(second)
        with stage.take(stage.uuids, BOTH) as lease:
            applied = lease.apply(_setting(stage), gpus=[first])
            assert set(applied.effective) == {first}
            assert stage.limit_w(second) == before_w
            assert stage.ceiling_mhz(second) is None

    def test_a_clock_is_snapped_to_one_that_there_is(self, stage: LeaseStage) -> None:
        clock_mhz = _setting(stage)["sm_mhz"]
        with stage.take(stage.uuids[:1], {"sm_mhz"}) as lease:
            applied = lease.apply(Setting(sm_mhz=clock_mhz + 0.3))
            assert applied.effective[stage.uuids[0]] == Setting(sm_mhz=clock_mhz)

    def test_release_can_be_called_again_and_says_the_same(self, stage: LeaseStage) -> None:
        lease = stage.take(stage.uuids, BOTH)
        lease.apply(_setting(stage))
        assert lease.release() == lease.release()

    def test_after_its_end_it_is_lost(self, stage: LeaseStage) -> None:
        before_w = stage.limit_w(stage.uuids[0])
        lease = stage.take(stage.uuids, BOTH)
        lease.release()
        assert not lease.alive
        for act in (lease.apply, lease.beat, lambda: lease.quiet(1.0)):
            _raises(LeaseLost, act)
        assert stage.limit_w(stage.uuids[0]) == before_w

    def test_leaving_the_context_by_an_error_gives_everything_back(self, stage: LeaseStage) -> None:
        uuid = stage.uuids[0]
        before_w = stage.limit_w(uuid)

        def fail() -> None:
            with stage.take([uuid], BOTH) as lease:
                lease.apply(_setting(stage))
                raise RuntimeError("the training failed")

        with pytest.raises(RuntimeError):
            fail()
        assert stage.limit_w(uuid) == before_w
        assert stage.ceiling_mhz(uuid) is None

    def test_a_knob_has_one_lease_and_the_conflict_names_it(self, stage: LeaseStage) -> None:
        with stage.take(stage.uuids[:1], {"power_limit_w"}) as lease:
            lease.apply(Setting(power_limit_w=_setting(stage)["power_limit_w"]))
            said = _raises(LeaseTaken, lambda: stage.take(stage.uuids[:1], BOTH))
            assert stage.uuids[0] in said
            assert "power_limit_w" in said
            assert lease.alive
            assert stage.limit_w(stage.uuids[0]) == _setting(stage)["power_limit_w"]
        with stage.take(stage.uuids[:1], BOTH) as later:
            assert later.alive

    def test_another_knob_of_the_same_gpu_can_have_another_lease(self, stage: LeaseStage) -> None:
        uuid = stage.uuids[0]
        wanted = _setting(stage)
        with stage.take([uuid], {"power_limit_w"}) as limits, stage.take([uuid], {"sm_mhz"}) as clocks:
            limits.apply(Setting(power_limit_w=wanted["power_limit_w"]))
            clocks.apply(Setting(sm_mhz=wanted["sm_mhz"]))
            limits.release()
            assert stage.ceiling_mhz(uuid) == wanted["sm_mhz"]

    def test_several_gpus_are_taken_all_or_none(self, stage: LeaseStage) -> None:
        first, second = stage.uuids
        with stage.take([second], BOTH):
            _raises(LeaseTaken, lambda: stage.take(stage.uuids, BOTH))
            with stage.take([first], BOTH) as free:
                assert free.alive

    def test_a_bad_setting_is_refused_and_changes_nothing(self, stage: LeaseStage) -> None:
        uuid = stage.uuids[0]
        limits, wanted = stage.space.knobs["power_limit_w"], _setting(stage)
        with stage.take([uuid], {"power_limit_w"}) as lease:
            lease.apply(Setting(power_limit_w=wanted["power_limit_w"]))
            for bad_w in (limits.high + 1, limits.low - 1, 0.0, -1.0, 1e308):
                _raises(OutOfRange, lambda bad_w=bad_w: lease.apply(Setting(power_limit_w=bad_w)))  # type: ignore[misc]
            for no_number in (math.nan, math.inf):
                _raises(JoulewiseError, lambda bad=no_number: lease.apply(Setting(power_limit_w=bad)))  # type: ignore[misc]
            _raises(NotPermitted, lambda: lease.apply(wanted))  # sm_mhz is not in it
            _raises(NoGpu, lambda: lease.apply(gpus=["GPU-of-nobody"]))
            assert stage.limit_w(uuid) == wanted["power_limit_w"]
            assert stage.ceiling_mhz(uuid) is None

    def test_a_knob_that_there_is_not_cannot_be_taken(self, stage: LeaseStage) -> None:
        for knobs in ({"warp_drive"}, {"sm_mhz", "warp_drive"}):
            _raises((Unsupported, NotPermitted), lambda knobs=knobs: stage.take(stage.uuids, knobs))  # type: ignore[misc]
        with stage.take(stage.uuids, BOTH) as lease:
            assert lease.alive

    def test_where_one_gpu_refuses_no_gpu_keeps_a_part(self, stage: LeaseStage) -> None:
        first, second = stage.uuids
        wanted, limits = _setting(stage), stage.space.knobs["power_limit_w"]
        for refusing, other in ((first, second), (second, first)):
            with stage.take(stage.uuids, BOTH) as lease:
                lease.apply(Setting(power_limit_w=limits.low + 1))
                stage.refuse(refusing, True)
                _raises(GpuError, lambda lease=lease: lease.apply(wanted))  # type: ignore[misc]
                stage.refuse(refusing, False)
                for uuid in (refusing, other):
                    assert stage.limit_w(uuid) == limits.low + 1
                    assert stage.ceiling_mhz(uuid) is None

    def test_somebody_elses_limit_is_told_and_stays(self, stage: LeaseStage) -> None:
        uuid = stage.uuids[0]
        theirs_w = stage.space.knobs["power_limit_w"].high - 123.0
        with stage.take([uuid], BOTH) as lease:
            lease.apply(_setting(stage))
            lease.notices()
            stage.set_limit(uuid, theirs_w)
            told = _wait(stage, lambda: [each for each in lease.notices() if each.kind == "foreign"])
            assert (told[0].gpu, told[0].knob, told[0].found) == (uuid, "power_limit_w", theirs_w)
            ended = lease.release()
        assert stage.limit_w(uuid) == theirs_w
        assert not ended.clean
        (left,) = (each for each in ended.restored if each.knob == "power_limit_w")
        assert (left.ending, left.after) == (Ending.FOREIGN, theirs_w)
        stage.set_limit(uuid, stage.space.knobs["power_limit_w"].high)

    def test_while_quiet_nothing_is_written_but_things_are_given_back(self, stage: LeaseStage) -> None:
        uuid = stage.uuids[0]
        before_w = stage.limit_w(uuid)
        with stage.take([uuid], BOTH) as lease:
            lease.apply(_setting(stage))
            lease.quiet(60.0, "checkpoint")
            with pytest.raises(NotNow) as caught:
                lease.apply()
            assert 0 < caught.value.retry_s <= 60.0
            assert stage.limit_w(uuid) == _setting(stage)["power_limit_w"]
            lease.quiet(0.0)
            lease.apply(Setting(sm_mhz=_setting(stage)["sm_mhz"]))
            lease.quiet(60.0)
            lease.release()
        assert stage.limit_w(uuid) == before_w
        assert stage.ceiling_mhz(uuid) is None
        with stage.take([uuid], BOTH) as later:
            later.quiet(0.0)
            later.apply(_setting(stage))

    def test_it_can_be_used_from_any_thread(self, stage: LeaseStage) -> None:
        limits = stage.space.knobs["power_limit_w"]
        failed: list[JoulewiseError] = []
        with stage.take(stage.uuids, {"power_limit_w"}) as lease:

            def work(number: int) -> None:
                for turn in range(4):
                    try:
                        lease.apply(Setting(power_limit_w=limits.low + 10 * number + turn))
                    except NotNow:
                        pass
                    except JoulewiseError as error:
                        failed.append(error)

            threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(timeout=60)
            assert failed == []
            # All GPUs have the same one: whoever came last has set them all.
            assert len({stage.limit_w(uuid) for uuid in stage.uuids}) == 1


def _setting(stage: LeaseStage) -> Setting:
    clocks, limits = stage.space.knobs["sm_mhz"], stage.space.knobs["power_limit_w"]
    return Setting(sm_mhz=clocks.snap((clocks.low + clocks.high) / 2), power_limit_w=limits.low + 25.0)


def _raises(kind: type[BaseException] | tuple[type[BaseException], ...], act: Callable[[], object]) -> str:
    """The message, which is one line."""
    with pytest.raises(kind) as caught:
        act()
    said = str(caught.value)
    assert said.strip()
    assert "\n" not in said
    return said


def _wait(stage: LeaseStage, seen: Callable[[], list[Notice]]) -> list[Notice]:
    """What ``seen`` gives once it gives something."""
    until_s = stage.time.now_s() + PATIENCE_S
    while not (found := seen()):
        assert stage.time.now_s() < until_s, "nobody was told"
        stage.time.sleep(0.05)
    return found
