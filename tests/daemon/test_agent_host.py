"""The host's part of a node's power, counted on a made-up powercap tree."""

import pytest

from joulewise.core.timeline import VirtualTime
from joulewise.daemon.agent_host import MEAN_S, CountedHost, DeclaredHost
from joulewise.device.host import HostEnergy


@pytest.fixture
def counted(tmp_path):
    zone = tmp_path / "intel-rapl:0"
    zone.mkdir()
    (zone / "name").write_text("package-0\n")
    (zone / "max_energy_range_uj").write_text("262143328850\n")

    def shows(energy_j):
        (zone / "energy_uj").write_text(f"{round(1e6 * energy_j)}\n")

    shows(0.0)
    time = VirtualTime()
    return CountedHost(HostEnergy(tmp_path, time=time)), shows, time


def test_a_host_s_joules_are_entered_once_however_close_the_counts_are_and_its_power_is_no_step_of_the_counter(counted):
    host, shows, time = counted
    time.sleep(1.0)
    shows(200.0)
    assert host.drawn_j(None, 0.0) == pytest.approx(200.0)
    assert host.power_w == pytest.approx(200.0)
    time.sleep(MEAN_S / 100)
    shows(203.0)  # three kilowatts, if it were a mean
    assert host.drawn_j(None, 0.0) == pytest.approx(3.0)
    assert host.power_w == pytest.approx(200.0)
    time.sleep(1.0)
    shows(303.0)
    assert host.drawn_j(None, 0.0) == pytest.approx(100.0)
    assert host.power_w == pytest.approx(103.0, rel=0.01)


def test_declared_watts_are_counted_over_all_the_time_since_the_last_count():
    host = DeclaredHost(300.0)
    assert host.drawn_j(None, 50.0) == 0.0
    assert host.drawn_j(50.0, 60.0) == 3000.0
    assert host.drawn_j(60.0, 55.0) == 0.0, "a clock that was set back draws nothing"
    assert DeclaredHost(None, "why").drawn_j(50.0, 60.0) is None
