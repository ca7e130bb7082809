"""Host energy on a made-up powercap tree: wrap-around, unreadable range, permission denied (scenario R19)."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from joulewise.core.measurement import Source
from joulewise.core.timeline import VirtualTime
from joulewise.device.host import ROOT_VARIABLE, HostEnergy, _Counter
from tests.scenario_table import Shown

RANGE_UJ = 262_143_328_850  # what Intel server packages report
NOBODY = 65_534


def make_zone(root: Path, name: str, label: str, energy_uj: int, range_uj: int | None = RANGE_UJ) -> Path:
    path = root / name
    path.mkdir(parents=True)
    (path / "name").write_text(label + "\n")
    (path / "energy_uj").write_text(f"{energy_uj}\n")
    if range_uj is not None:
        (path / "max_energy_range_uj").write_text(f"{range_uj}\n")
    return path


@pytest.fixture
def root() -> Iterator[Path]:
    # Not tmp_path: an ordinary user must be able to walk down to it.
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@contextmanager
def ordinary_user() -> Iterator[None]:
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def set_energy(path: Path, energy_uj: int) -> None:
    (path / "energy_uj").write_text(f"{energy_uj}\n")


def test_two_sockets_add_up_and_cores_and_platform_are_not_counted_twice(root: Path) -> None:
    time = VirtualTime()
    zones = [
        make_zone(root, "intel-rapl:0", "package-0", 0),
        make_zone(root, "intel-rapl:0:0", "core", 0),
        make_zone(root, "intel-rapl:0:1", "dram", 0),
        make_zone(root, "intel-rapl:1", "package-1", 0),
        make_zone(root, "intel-rapl:1:0", "dram", 0),
        make_zone(root, "intel-rapl:2", "psys", 0),
        make_zone(root, "intel-rapl-mmio:0", "package-0", 0),
    ]
    host = HostEnergy(root, time=time)
    assert [zone.name for zone in host.zones] == ["package-0", "core-0", "dram-0", "package-1", "dram-1", "psys-2"]
    before = host.read()
    time.sleep(2.0)
    for weight, zone in enumerate(zones, start=1):
        set_energy(zone, weight * 1_000_000)
    window = host.between(before, host.read())
    assert window.zones == {
        "package-0": 1.0,
        "core-0": 2.0,
        "dram-0": 3.0,
        "package-1": 4.0,
        "dram-1": 5.0,
        "psys-2": 6.0,
    }
    assert window.energy_j == 1 + 3 + 4 + 5
    assert window.duration_s == 2.0
    assert window.source is Source.COUNTER
    assert window.notes == ()


R19 = "exact delta or skipped sample, provenance; never negative, never 0 for unknown"


def test_energy_is_exact_over_any_number_of_wraps(scenario: Callable[..., Shown]) -> None:
    shown = scenario("R19", "RAPL counters wrap", criterion=R19)
    wraps = 0

    @example(start_uj=RANGE_UJ - 1, steps_uj=[60_000_000_000] * 20)
    @given(
        start_uj=st.integers(0, RANGE_UJ),
        steps_uj=st.lists(st.integers(0, 60_000_000_000), min_size=1, max_size=20),
    )
    def walk(start_uj: int, steps_uj: list[int]) -> None:
        nonlocal wraps
        energy_is_exact(start_uj, steps_uj)
        wraps += (start_uj % RANGE_UJ + sum(steps_uj)) // RANGE_UJ

    walk()
    assert wraps > 0
    shown.saw(f"{wraps} wraps counted to 0.1 mJ")


def energy_is_exact(start_uj: int, steps_uj: list[int]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        zone = make_zone(Path(directory), "intel-rapl:0", "package-0", start_uj % RANGE_UJ)
        time = VirtualTime()
        host = HostEnergy(Path(directory), time=time)
        before = host.read()
        true_uj, seen_j = start_uj, 0.0
        for step_uj in steps_uj:
            true_uj += step_uj
            time.sleep(60.0)  # at most 1 kW
            set_energy(zone, true_uj % RANGE_UJ)
            energy_j = host.read().zones["package-0"].energy_j
            assert energy_j is not None
            assert energy_j >= seen_j
            seen_j = energy_j
        window = host.between(before, host.read())
        assert window.energy_j == pytest.approx(sum(steps_uj) / 1e6, abs=1e-4)
        assert window.source is Source.COUNTER


def test_a_wrap_with_an_unreadable_range_is_a_skipped_sample_and_never_negative(
    root: Path, scenario: Callable[..., Shown]
) -> None:
    shown = scenario("R19", "RAPL counter wraps, its range unreadable", criterion=R19)
    time = VirtualTime()
    zone = make_zone(root, "intel-rapl:0", "package-0", 5_000_000, range_uj=None)
    host = HostEnergy(root, time=time)
    before = host.read()
    time.sleep(1.0)
    set_energy(zone, 9_000_000)
    middle = host.read()
    time.sleep(1.0)
    set_energy(zone, 1_000_000)
    wrapped = host.read()
    time.sleep(1.0)
    set_energy(zone, 3_000_000)
    after = host.read()

    assert host.between(before, middle).energy_j == 4.0
    across = host.between(middle, wrapped)
    assert across.energy_j is None
    assert across.zones == {"package-0": None}
    assert "wrapped" in across.notes[0]
    assert host.between(before, after).energy_j is None
    assert host.between(wrapped, after).energy_j == 2.0
    assert after.zones["package-0"].energy_j == 6.0
    shown.saw("the window across it unknown, noted; windows beside it exact")


def test_a_zone_not_read_for_too_long_has_a_gap_instead_of_a_guess(root: Path) -> None:
    time = VirtualTime()
    zone = make_zone(root, "intel-rapl:0", "package-0", 0)
    host = HostEnergy(root, time=time)
    before = host.read()
    time.sleep(600.0)
    set_energy(zone, 1_000_000)
    window = host.between(before, host.read())
    assert window.energy_j is None
    assert "600 s" in window.notes[0]


def test_a_counter_that_restarts_is_not_taken_for_a_wrap(root: Path) -> None:
    time = VirtualTime()
    zone = make_zone(root, "intel-rapl:0", "package-0", 90_000_000_000)
    host = HostEnergy(root, time=time)
    before = host.read()
    time.sleep(1.0)
    set_energy(zone, 50)
    window = host.between(before, host.read())
    assert window.energy_j is None
    assert "reset" in window.notes[0]


def test_a_zone_that_vanishes_for_a_while_is_unknown_and_then_counts_again(root: Path) -> None:
    time = VirtualTime()
    zone = make_zone(root, "intel-rapl:0", "package-0", 0)
    host = HostEnergy(root, time=time)
    before = host.read()
    (zone / "energy_uj").write_text("")
    lost = host.read()
    assert lost.zones["package-0"].energy_j is None
    assert host.read().zones["package-0"].gaps == 1
    set_energy(zone, 7_000_000)
    back = host.read()
    set_energy(zone, 8_000_000)
    after = host.read()
    assert host.between(before, lost).energy_j is None
    assert host.between(before, after).energy_j is None
    assert host.between(back, after).energy_j == 1.0


def test_permission_denied_is_absent_with_a_reason_and_never_zero(root: Path, scenario: Callable[..., Shown]) -> None:
    shown = scenario("R19", "RAPL: permission denied", criterion=R19)
    secret = make_zone(root, "intel-rapl:0", "package-0", 123)
    (secret / "energy_uj").chmod(0o400 if os.geteuid() == 0 else 0o000)
    with ordinary_user():
        host = HostEnergy(root, time=VirtualTime())
        window = host.between(host.read(), host.read())
    assert host.zones == ()
    assert len(host.missing) == 1
    assert "permission denied" in host.missing[0]
    assert "CVE-2020-8694" in host.missing[0]
    assert window.energy_j is None
    assert window.zones == {}
    shown.saw("unknown, with the reason")


def test_one_forbidden_zone_leaves_the_others(root: Path) -> None:
    make_zone(root, "intel-rapl:0", "package-0", 0)
    secret = make_zone(root, "intel-rapl:0:0", "dram", 0)
    (secret / "energy_uj").chmod(0o400 if os.geteuid() == 0 else 0o000)
    with ordinary_user():
        host = HostEnergy(root, time=VirtualTime())
        window = host.between(host.read(), host.read())
    assert [zone.name for zone in host.zones] == ["package-0"]
    assert len(host.missing) == 1
    assert window.zones == {"package-0": 0.0}
    assert window.energy_j is None
    assert window.notes == host.missing


def test_a_right_lost_later_opens_a_gap(root: Path) -> None:
    zone = make_zone(root, "intel-rapl:0", "package-0", 0)
    host = HostEnergy(root, time=VirtualTime())
    before = host.read()
    (zone / "energy_uj").chmod(0o400 if os.geteuid() == 0 else 0o000)
    with ordinary_user():
        window = host.between(before, host.read())
    assert window.energy_j is None
    assert "Permission denied" in window.notes[0]


@pytest.mark.parametrize("junk", ["", "not a number", "1.5"])
def test_a_broken_file_is_absent_with_a_reason(root: Path, junk: str) -> None:
    zone = make_zone(root, "intel-rapl:0", "package-0", 0)
    (zone / "energy_uj").write_text(junk)
    host = HostEnergy(root, time=VirtualTime())
    assert host.zones == ()
    assert "cannot read" in host.missing[0]


def test_no_tree_and_an_empty_tree_say_so_in_one_line(root: Path) -> None:
    for place in (root / "absent", root):
        host = HostEnergy(place, time=VirtualTime())
        assert host.zones == ()
        (line,) = host.missing
        assert str(place) in line
        assert "\n" not in line


def test_the_root_of_the_tree_comes_from_the_environment(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_zone(root, "intel-rapl:0", "package-0", 0)
    monkeypatch.setenv(ROOT_VARIABLE, str(root))
    assert [zone.name for zone in HostEnergy().zones] == ["package-0"]


def test_two_threads_that_read_at_once_count_every_joule_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zone = make_zone(root, "intel-rapl:0", "package-0", 0)
    time = VirtualTime()
    host = HostEnergy(root, time=time)
    before = host.read()
    set_energy(zone, 5_000_000)
    time.sleep(1.0)
    add, beside = _Counter._add, []

    def interrupted(counter: _Counter, used_j: float, waited_s: float) -> None:
        if not beside:  # the first of the two is in the middle of counting
            beside.append(threading.Thread(target=host.read))
            beside[0].start()
            beside[0].join(0.2)
        add(counter, used_j, waited_s)

    monkeypatch.setattr(_Counter, "_add", interrupted)
    host.read()
    beside[0].join(60)
    assert host.between(before, host.read()).energy_j == 5.0
