"""``hold``: by the daemon, by root's own rights, in memory, or not at all. With a daemon: see tests/daemon."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from joulewise.core.errors import BadSpec, JoulewiseError, Unsupported
from joulewise.core.knob import Setting
from joulewise.core.timeline import VirtualTime
from joulewise.device.hold import hold
from joulewise.device.keeper import Keeper
from joulewise.device.lease import Owner
from joulewise.device.local import LocalLease
from joulewise.device.node import RunningNode
from joulewise.device.nvml import NvmlGpu
from joulewise.device.nvml_controls import NvmlControls
from joulewise.device.saved import Saved
from joulewise.device.virtual import VirtualGpu
from joulewise.device.vnvml_layout import VnvmlState
from joulewise.model import catalog
from tests.device.test_nvml import virtual_node


@pytest.fixture(scope="module")
def node(virtual_nvml: None) -> Iterator[RunningNode]:
    with virtual_node("sim:h200,v100") as node:
        yield node


def test_virtual_gpus_are_held_in_memory_and_all_their_knobs_if_none_is_named() -> None:
    time = VirtualTime()
    gpus = [VirtualGpu(catalog.load("h200"), time=time, index=index) for index in range(2)]
    with hold(gpus) as lease:
        assert lease.knobs == {"sm_mhz", "memory_mhz", "power_limit_w"}
        lease.apply(Setting(power_limit_w=300))
        assert [gpu.asked_limit_w for gpu in gpus] == [300.0, 300.0]
    assert [gpu.asked_limit_w for gpu in gpus] == [700.0, 700.0]


def test_root_without_a_daemon_holds_gpus_itself(node: RunningNode, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may set")
    gpus = NvmlGpu.all()
    nobody = tmp_path / "no.sock"
    with hold(gpus, socket=nobody, state=tmp_path / "state") as lease, VnvmlState.open(node.directory) as seen:
        assert isinstance(lease, LocalLease)
        assert lease.knobs == {"sm_mhz", "power_limit_w"}  # what both models have
        lease.apply(Setting(sm_mhz=900))
        assert seen.read_control(1).sm_lock_mhz is not None
        lease.release()
        assert seen.read_control(1).sm_lock_mhz is None


def test_who_holds_after_a_dead_daemon_brings_clocks_to_the_baseline_that_it_knew(
    node: RunningNode, tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may set")
    controls = NvmlControls.all()[0]
    saved = Saved.open(tmp_path, controls.uuid)
    dead = Keeper(controls, saved, baseline=Setting(sm_mhz=1500))
    dead.take(["sm_mhz"], Owner("lease-1", 1000, 42))
    dead.apply(Setting(sm_mhz=900), ["sm_mhz"])
    saved.close()
    with VnvmlState.open(node.directory) as seen:
        with hold([controls.uuid], ["power_limit_w"], socket=tmp_path / "no.sock", state=tmp_path):
            lock = seen.read_control(0).sm_lock_mhz
        controls.reset("sm_mhz")
    assert lock is not None
    assert lock[1] == 1500


def test_others_without_a_daemon_hear_the_way_out(node: RunningNode, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "import joulewise.device.nvml_controls, joulewise.device.remote\n"
        "from joulewise.core.errors import NotPermitted\n"
        "from joulewise.device.hold import hold\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try:\n"
        "    hold(['GPU-x'], ['sm_mhz'], socket=Path(sys.argv[1]))\n"
        "except NotPermitted as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, f"/run/joulewise-{os.getpid()}-is-not-there.sock"],
        env=node.environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "root starts one with 'joulewise daemon'" in done.stdout, done.stderr
    assert done.stdout.count("\n") == 1


def test_what_makes_no_sense_is_refused(node: RunningNode, tmp_path: Path) -> None:
    virtual = VirtualGpu(catalog.load("h200"), time=VirtualTime())
    with pytest.raises(BadSpec):
        hold([])
    with pytest.raises(BadSpec, match="cannot share"):
        hold([virtual, NvmlGpu.all()[0]])
    with pytest.raises(Unsupported):
        hold([virtual], ["warp_drive"])
    with pytest.raises(JoulewiseError):
        hold(["GPU-of-nobody"], ["sm_mhz"], socket=tmp_path / "no.sock", state=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == []
