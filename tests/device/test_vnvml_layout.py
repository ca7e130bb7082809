"""The shared memory of the virtual NVML, without the library: layout, files, and what comes back of what went in."""

from __future__ import annotations

import ctypes
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import joulewise.native
from joulewise.core.errors import BadSpec, GpuLost
from joulewise.device import vnvml_structs as structs
from joulewise.device.vnvml_layout import GpuIdentity, Group, VnvmlState
from joulewise.device.vnvml_values import range_of, word_of

HEADER = Path(joulewise.native.__file__).parent / "vnvml" / "state.h"

C_NAMES: dict[type[ctypes.Structure], str] = {
    structs.Header: "vnvml_header",
    structs.Clock: "vnvml_clock",
    structs.Identity: "vnvml_identity",
    structs.Process: "vnvml_process",
    structs.Published: "vnvml_published",
    structs.ControlWords: "vnvml_control",
    structs.Faults: "vnvml_faults",
    structs.Sample: "vnvml_sample",
    structs.GpuBlock: "vnvml_gpu",
    structs.State: "vnvml_state",
}


def gpu(**changes: Any) -> GpuIdentity:
    facts: dict[str, Any] = {
        "uuid": "GPU-0",
        "name": "NVIDIA V100",
        "sm_clocks_mhz": (135, 142, 1380),
        "memory_clocks_mhz": (877,),
        "memory_total_bytes": 16 << 30,
        "limit_mw": (100_000, 250_000, 250_000),
    }
    return GpuIdentity(**(facts | changes))


@pytest.fixture
def state(tmp_path: Path) -> Iterator[VnvmlState]:
    with VnvmlState.create(tmp_path, [gpu(), gpu(uuid="GPU-1")]) as state:
        yield state


def test_every_field_lies_where_the_c_header_has_it(tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to ask for offsets")
    expected, lines = [], []
    for mirror, name in C_NAMES.items():
        lines.append(f'printf("%zu\\n", sizeof(struct {name}));')
        expected.append((name, "size", ctypes.sizeof(mirror)))
        for field, *_ in mirror._fields_:
            lines.append(f'printf("%zu\\n", offsetof(struct {name}, {field}));')
            expected.append((name, field, getattr(mirror, field).offset))
    program = f'#include <stddef.h>\n#include <stdio.h>\n#include "{HEADER}"\nint main(void) {{ {"".join(lines)} }}'
    (tmp_path / "offsets.c").write_text(program)
    subprocess.run([compiler, "-o", tmp_path / "offsets", tmp_path / "offsets.c"], check=True)
    offsets = subprocess.run([tmp_path / "offsets"], capture_output=True, text=True, check=True).stdout.split()
    assert [(name, field, int(offset)) for (name, field, _), offset in zip(expected, offsets, strict=True)] == expected


def test_every_field_of_the_c_header_is_mirrored() -> None:
    source = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)
    for mirror, name in C_NAMES.items():
        body = re.search(rf"struct {name} \{{(.*?)\}};", source, re.DOTALL)
        assert body is not None
        assert re.findall(r"(\w+)(?:\[\w+\])?;", body[1]) == [field for field, *_ in mirror._fields_]


def test_both_sides_have_the_same_constants() -> None:
    defined = dict(re.findall(r"#define VNVML_(\w+) (\w+)", HEADER.read_text()))
    for name in ("LAYOUT_VERSION", "MAX_GPUS", "MAX_SM_CLOCKS", "MAX_MEMORY_CLOCKS", "MAX_PROCESSES", "MAX_GROUPS"):
        assert int(defined[name].rstrip("u")) == getattr(structs, name)
    flags = ("EVERYONE_MAY_WRITE", "FAULT_LOST", "FAULT_NO_PERMISSION", "FAULT_HANG", "FAULT_MIG")
    for name in ("SAMPLES", "GPM_SLOTS", *flags):
        assert int(defined[name].rstrip("u")) == getattr(structs, name)
    assert int(defined["MAGIC"].rstrip("UL"), 16) == structs.MAGIC
    groups = dict(re.findall(r"VNVML_(\w+) = (\d+)", HEADER.read_text()))
    assert {name: int(number) for name, number in groups.items()} == {group.name: group.value for group in Group}


def test_what_was_published_stays_until_it_is_published_anew(state: VnvmlState) -> None:
    state.publish(0, power_mw=250_000, energy_mj=2**40, processes=[(7, 100), (8, None)])
    state.publish(0, power_mw=240_000)
    seen = state.published(0)
    assert (seen.power_mw, seen.energy_mj, seen.process_count) == (240_000, 2**40, 2)
    assert [(p.pid, p.memory_bytes) for p in seen.processes[:2]] == [(7, 100), (8, structs.NONE_64)]


def test_what_was_never_published_or_is_none_has_no_value(state: VnvmlState) -> None:
    state.publish(0, power_mw=None, energy_mj=None)
    seen = state.published(0)
    assert seen.power_mw == seen.sm_mhz == structs.NONE_32
    assert seen.energy_mj == structs.NONE_64
    assert (seen.process_count, seen.gpm_slots) == (0, 0)


def test_a_misspelt_value_is_an_error(state: VnvmlState) -> None:
    with pytest.raises(AttributeError, match="power_w"):
        state.publish(0, power_w=250)  # type: ignore[call-arg]


def test_one_gpu_does_not_show_in_another(state: VnvmlState) -> None:
    state.publish(0, power_mw=1)
    state.publish(1, power_mw=2)
    assert (state.published(0).power_mw, state.published(1).power_mw) == (1, 2)


def test_others_see_what_the_simulator_publishes_and_it_sees_what_they_ask(state: VnvmlState) -> None:
    state.publish(0, power_mw=123)
    with VnvmlState.open(state.directory) as other:
        assert (len(other), other.published(0).power_mw, other.alive()) == (2, 123, True)
        other.write_control(0, sm_lock_mhz=(135, 1380))
        assert state.read_control(0).sm_lock_mhz == (135, 1380)
        other.set_fault(1, lost=True)
        assert other.wake is None


def test_a_fresh_gpu_is_at_its_defaults(state: VnvmlState) -> None:
    control = state.read_control(0)
    assert (control.power_limit_mw, control.sm_lock_mhz, control.memory_lock_mhz) == (250_000, None, None)
    assert (control.persistence, control.sequence, control.written_ns) == (True, 0, 0)


def test_writing_one_knob_leaves_the_others(state: VnvmlState) -> None:
    state.write_control(0, power_limit_mw=150_000, memory_lock_mhz=(877, 877))
    state.write_control(0, persistence=False)
    control = state.read_control(0)
    assert (control.power_limit_mw, control.memory_lock_mhz, control.persistence) == (150_000, (877, 877), False)
    assert (control.sequence, control.writer_pid) == (2, os.getpid())


def test_a_driver_reload_resets_every_gpu(state: VnvmlState) -> None:
    state.write_control(1, power_limit_mw=150_000, sm_lock_mhz=(135, 135))
    state.reload_driver()
    assert (state.read_control(1).power_limit_mw, state.read_control(1).sm_lock_mhz) == (250_000, None)
    assert state.driver_generation == 1


def test_faults_are_set_and_cleared_one_by_one(state: VnvmlState) -> None:
    state.set_fault(0, lost=True, hang=True, unsupported={Group.GPM}, latency_us={Group.ENERGY_COUNTER: 3_450})
    state.set_fault(0, lost=False)
    state.set_fault(0, no_permission=True)
    faults = structs.State.from_buffer_copy((state.directory / "state").read_bytes()).gpus[0].faults
    assert faults.flags == structs.FAULT_HANG | structs.FAULT_NO_PERMISSION
    assert faults.unsupported == 1 << Group.GPM
    assert faults.latency_us[Group.ENERGY_COUNTER] == 3_450


def test_simulated_time_runs_on_at_its_speed(tmp_path: Path) -> None:
    with VnvmlState.create(tmp_path, [gpu()], speed=10.0) as state:
        a_second_ago = time.monotonic_ns() - 10**9
        state.publish_time(5 * 10**9, monotonic_ns=a_second_ago)
        first = state.simulated_ns()
        assert first >= 15 * 10**9
        assert state.simulated_ns() >= first
        assert state.speed == 10.0


def test_closing_is_the_end_of_life(tmp_path: Path) -> None:
    state = VnvmlState.create(tmp_path, [gpu()])
    other = VnvmlState.open(tmp_path)
    state.close()
    state.close()
    assert (state.alive(), other.alive()) == (False, False)
    other.close()
    with pytest.raises(GpuLost, match="joulewise sim"):
        VnvmlState.open(tmp_path)


def test_one_directory_has_one_living_simulator(state: VnvmlState) -> None:
    with pytest.raises(BadSpec, match="already runs"):
        VnvmlState.create(state.directory, [gpu()])
    assert state.alive()
    with VnvmlState.open(state.directory) as other:
        assert len(other) == 2


def test_the_remains_of_a_killed_simulator_are_replaced(tmp_path: Path) -> None:
    script = (
        "import sys, time; from joulewise.device.vnvml_layout import *; "
        "state = VnvmlState.create(sys.argv[1], [GpuIdentity(uuid='GPU-9', name='old', sm_clocks_mhz=(1,), "
        "memory_clocks_mhz=(1,), memory_total_bytes=1, limit_mw=None)]); print(flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    old = VnvmlState.open(tmp_path)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not old.alive()
    with pytest.raises(GpuLost, match="has ended"):
        VnvmlState.open(tmp_path)
    with VnvmlState.create(tmp_path, [gpu(), gpu()]), VnvmlState.open(tmp_path) as new:
        assert len(new) == 2
        assert not old.alive()  # a new simulator is no revival of the old one
    old.close()


def test_a_state_of_another_layout_is_named_as_such(state: VnvmlState) -> None:
    path = state.directory / "state"
    path.write_bytes(b"nonsense" + path.read_bytes()[8:])
    with pytest.raises(BadSpec, match="another version"):
        VnvmlState.open(state.directory)


def test_who_may_write_is_kept_by_the_file_system(tmp_path: Path) -> None:
    for everyone, mode in ((True, 0o666), (False, 0o644)):
        with VnvmlState.create(tmp_path / str(everyone), [gpu()], everyone_may_write=everyone) as state:
            for name in ("state", "wake"):
                assert (state.directory / name).stat().st_mode & 0o777 == mode
            assert state.directory.stat().st_mode & 0o755 == 0o755


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody who may not write")
def test_whoever_may_not_write_can_still_read() -> None:
    script = (
        "import os, sys; from joulewise.device.vnvml_layout import *; os.setgid(65534); os.setuid(65534)\n"
        "state = VnvmlState.open(sys.argv[1]); print(state.published(0).power_mw, state.alive())\n"
        "try: state.set_fault(0, lost=True)\n"
        "except Exception as error: print(type(error).__name__)"
    )
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        with VnvmlState.create(directory, [gpu()]) as state:
            state.publish(0, power_mw=123)
            command = [sys.executable, "-c", script, directory]
            seen = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert seen.split() == ["123", "True", "NotPermitted"]


def test_a_long_path_is_no_hindrance(tmp_path: Path) -> None:
    with VnvmlState.create(tmp_path / ("x" * 200), [gpu()]) as state:
        assert state.wake is not None
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as poke:
            fd = os.open(state.directory, os.O_RDONLY)
            poke.sendto(b"w", f"/proc/self/fd/{fd}/wake")
            os.close(fd)
        assert select.select([state.wake], [], [], 5)[0]
        state.drain_wake()
        assert not select.select([state.wake], [], [], 0)[0]


@pytest.mark.parametrize(
    "gpus",
    [
        [],
        [gpu()] * 65,
        [gpu(sm_clocks_mhz=range(1, 515))],
        [gpu(memory_clocks_mhz=())],
        [gpu(memory_clocks_mhz=range(9))],
    ],
)
def test_what_does_not_fit_the_layout_is_refused_and_leaves_nothing(tmp_path: Path, gpus: list[GpuIdentity]) -> None:
    with pytest.raises(BadSpec):
        VnvmlState.create(tmp_path, gpus)
    assert list(tmp_path.iterdir()) == []


MHZ = st.integers(1, 2**32 - 1)


@given(st.none() | st.tuples(MHZ, MHZ))
def test_a_lock_survives_its_word(lock: tuple[int, int] | None) -> None:
    assert range_of(word_of(lock)) == lock
