"""The simulator as a process of its own, seen by other processes: through NVML, and through virtual work."""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import socket
import statistics
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from joulewise import native
from joulewise.core.errors import BadSpec, GpuLost
from joulewise.core.knob import Choices
from joulewise.device import node
from joulewise.device.node import RunningNode
from joulewise.device.simulator import Order
from joulewise.device.work import Link
from joulewise.model import catalog, physics
from joulewise.model.physics import Load
from tests.device.busy import kept_busy

H200 = catalog.load("h200")
LIGHT = Load(gpu_s=0.02, sm_share=0.9, dynamic_w=300.0)
HEAVY = Load(gpu_s=0.05, sm_share=0.9, dynamic_w=900.0)

try:
    native.library_path()
    BUILT = True
except FileNotFoundError:
    BUILT = False
needs_nvml = pytest.mark.skipif(not BUILT, reason="the virtual NVML is not built; install joulewise with a C compiler")


@pytest.fixture(scope="module")
def one() -> Iterator[RunningNode]:
    """One H200 in real time; tests leave it as they found it."""
    with node.spawn("sim:h200") as running:
        yield running


def through_nvml(running: RunningNode, code: str) -> str:
    """What ``code`` prints in another process that sees the first virtual GPU as ``gpu`` through nvidia-ml-py."""
    script = "from pynvml import *\nimport time\nnvmlInit()\ngpu = nvmlDeviceGetHandleByIndex(0)\n"
    return elsewhere(running, script + textwrap.dedent(code))


def elsewhere(running: RunningNode, script: str) -> str:
    """What ``script`` prints in another process."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=running.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_work_blocks_for_the_laws_time(one: RunningNode) -> None:
    link = Link(one.directory)
    before_s = time.monotonic()
    done = link.work(LIGHT)
    assert time.monotonic() - before_s >= 0.02
    assert done.finished_s - done.started_s == pytest.approx(0.02, rel=1e-6)
    law_w = physics.operate(H200.chip, LIGHT, temperature_c=34.0).average_power_w
    assert done.energy_j == pytest.approx(0.02 * law_w, rel=0.02)
    link.close()


def test_a_caller_that_comes_back_at_once_leaves_no_gap_however_late_everybody_woke(one: RunningNode) -> None:
    link = Link(one.directory)
    done = [link.work(LIGHT, hidden=True) for _ in range(20)]
    link.close()
    for before, after in itertools.pairwise(done):
        assert after.started_s == pytest.approx(before.finished_s, abs=1e-9)
    assert done[-1].finished_s - done[0].started_s == pytest.approx(20 * 0.02, rel=1e-6)


def test_a_callers_own_time_between_two_calls_counts_as_the_hosts(one: RunningNode) -> None:
    link = Link(one.directory)
    first = link.work(LIGHT)
    came_back_s = time.monotonic()
    time.sleep(0.1)
    left_s = time.monotonic()
    second = link.work(LIGHT)
    link.close()
    own_s = second.started_s - first.finished_s
    assert left_s - came_back_s <= own_s < left_s - came_back_s + 0.1


def test_work_may_be_numbers_names_or_loads(one: RunningNode) -> None:
    link = Link(one.directory)
    as_load = link.work(LIGHT)
    as_numbers = link.work((0.02, 0.9, 300.0))
    as_mapping = link.work({"gpu_s": 0.02, "sm_share": 0.9, "dynamic_w": 300.0})
    as_list = link.work([LIGHT, LIGHT])
    as_name = link.work("gnn")
    link.close()
    durations_s = [done.finished_s - done.started_s for done in (as_load, as_numbers, as_mapping)]
    assert durations_s == pytest.approx([0.02] * 3, rel=1e-6)
    assert as_list.finished_s - as_list.started_s == pytest.approx(0.04, rel=1e-6)
    assert as_name.finished_s > as_name.started_s


def test_two_processes_take_turns(one: RunningNode) -> None:
    code = (
        "import sys; from joulewise.device.work import work\n"
        "for _ in range(10): print(*work((0.02, 0.9, 300.0), hidden=True)[:2])"
    )
    workers = [
        subprocess.Popen([sys.executable, "-c", code], env=one.environment(), stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    spans = [tuple(map(float, line.split())) for worker in workers for line in worker.communicate()[0].splitlines()]
    spans.sort()
    assert len(spans) == 20
    for (_, end_s), (start_s, _) in itertools.pairwise(spans):
        assert start_s >= end_s - 1e-9


@pytest.mark.parametrize("gone", [False, True])
def test_work_that_comes_late_does_not_run_beside_work_whose_end_was_told(gone: bool, one: RunningNode) -> None:
    loads = [[LIGHT.gpu_s, LIGHT.sm_share, LIGHT.dynamic_w]]
    with closing(Link(one.directory)) as first, closing(Link(one.directory)) as late:
        told = first.work(LIGHT)
        if gone:
            first.close()
        request = {"op": "work", "gpu": 0, "loads": loads, "since_s": told.started_s - 1e-3}
        done = late.finish(late.send(request))
    assert done.started_s >= told.finished_s


def test_threads_have_connections_of_their_own(one: RunningNode, monkeypatch: pytest.MonkeyPatch) -> None:
    from joulewise.device.work import Done, work

    monkeypatch.setenv("JOULEWISE_VNVML", str(one.directory))
    done: list[Done] = []
    threads = [threading.Thread(target=lambda: done.append(work(LIGHT))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 4
    assert len({round(each.started_s, 6) for each in done}) == 4


def test_a_forked_child_reconnects_and_is_a_process_of_its_own(one: RunningNode) -> None:
    code = """
    import os
    from joulewise.device.work import work, current
    work((0.01, 0.9, 300.0))
    mine = current()
    child = os.fork()
    if child == 0:
        work((0.01, 0.9, 300.0))
        os._exit(0 if current() is not mine else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    work((0.01, 0.9, 300.0))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=one.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "0"


def test_bad_work_is_refused_in_one_line_and_the_connection_lives_on(one: RunningNode) -> None:
    link = Link(one.directory)
    for bad, message in (
        ("resnet-9000", "no workload is called 'resnet-9000'"),
        ([(1.0, 2.0, 3.0)], "is no work"),
        ([], "at least one load"),
        ([("a",)], "is no work .*could not convert"),
        (0.1, "0.1 is no work"),
        ({"gpu_s": 0.1}, "is no work .*sm_share"),
        (replace(LIGHT, static_part=math.nan), "is no work"),
        (replace(LIGHT, static_part=-5.0), "is no work"),
    ):
        with pytest.raises(BadSpec, match=message):
            link.work(bad)
    with pytest.raises(BadSpec, match="there is no virtual GPU 7"):
        link.work(LIGHT, gpu=7)
    assert link.work(LIGHT).energy_j > 0
    link.close()


def test_garbage_on_the_socket_harms_nobody(one: RunningNode) -> None:
    for garbage in (
        b"\x00\xff\n",
        b"[1,2]\n",
        b'{"op": "nothing"}\n',
        b'{"op": "work", "loads": 3}\n',
        b'{"op": "work", "load": {}}\n',
        b"[" * 100_000 + b"\n",
        b"x" * 2_000_000,
    ):
        with socket.socket(socket.AF_UNIX) as rude:
            rude.connect(str(one.directory / "work.sock"))
            rude.settimeout(5.0)
            try:
                rude.sendall(garbage)
                answer = json.loads(rude.recv(4096) or b'{"error": "hung up"}')
            except (BrokenPipeError, ConnectionResetError):
                answer = {"error": "hung up"}
        assert "error" in answer
    link = Link(one.directory)
    for moments in ({"since_s": "NaN"}, {"since_s": 1e400}, {"wall_s": -1e400}):
        with pytest.raises(BadSpec, match="is no moment"):
            link.ask({"op": "work", "loads": [[0.01, 0.5, 100.0]], **moments})
    link.close()
    with one.client() as client:
        assert client.truth().power_w > 0


def test_outside_a_simulator_work_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from joulewise.device.work import work

    monkeypatch.delenv("JOULEWISE_VNVML", raising=False)
    with pytest.raises(GpuLost, match="run under 'joulewise sim -- COMMAND'"):
        work(LIGHT)
    monkeypatch.setenv("JOULEWISE_VNVML", str(tmp_path))
    with pytest.raises(GpuLost, match="no simulator runs in"):
        work(LIGHT)


def test_the_work_client_loads_nothing_outside_the_standard_library() -> None:
    code = "import sys; before = set(sys.modules); import joulewise.device.work; print(*(set(sys.modules) - before))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    foreign = {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names
    assert foreign == {"joulewise"}


@needs_nvml
def test_a_process_is_listed_while_it_works_and_no_longer(one: RunningNode) -> None:
    def listed(wanted: str) -> str:
        """The pids that NVML lists; given time to become ``wanted``, because they are shown with the next reading."""
        code = "print(*[process.pid for process in nvmlDeviceGetComputeRunningProcesses(gpu)])"
        for _ in range(50):
            if (pids := through_nvml(one, code)) == wanted:
                break
            time.sleep(0.1)
        return pids

    assert listed("") == ""
    link = Link(one.directory)
    link.work(LIGHT)
    assert listed(str(os.getpid())) == str(os.getpid())
    link.close()
    assert listed("") == ""


@needs_nvml
def test_half_the_clock_set_by_another_process_gives_the_laws_step_time(one: RunningNode) -> None:
    link = Link(one.directory)
    fast = [link.work(LIGHT, hidden=True) for _ in range(10)]
    through_nvml(one, "nvmlDeviceSetGpuLockedClocks(gpu, 990, 990)")
    time.sleep(0.2)
    link.work(LIGHT)  # begins now; hidden work would begin where the last one ended, before the lock
    slow = [link.work(LIGHT, hidden=True) for _ in range(10)]
    shown_mhz = through_nvml(one, "print(nvmlDeviceGetClockInfo(gpu, NVML_CLOCK_SM))")
    through_nvml(one, "nvmlDeviceResetGpuLockedClocks(gpu)")
    link.close()
    assert statistics.fmean(each.finished_s - each.started_s for each in fast) == pytest.approx(0.02, rel=0.02)
    law_s = physics.step_s(H200.chip, LIGHT, 0.5)
    assert statistics.fmean(each.finished_s - each.started_s for each in slow) == pytest.approx(law_s, rel=0.02)
    assert shown_mhz == "990"


@needs_nvml
def test_a_limit_set_by_another_process_gives_its_power_and_its_reason(one: RunningNode) -> None:
    through_nvml(one, "nvmlDeviceSetPowerManagementLimit(gpu, 200000)")
    with kept_busy(one, HEAVY):
        time.sleep(1.0)
        shown = through_nvml(
            one,
            """
            instant = nvmlDeviceGetFieldValues(gpu, [NVML_FI_DEV_POWER_INSTANT])[0].value.uiVal
            print(instant, nvmlDeviceGetCurrentClocksEventReasons(gpu), nvmlDeviceGetPowerManagementLimit(gpu))
            """,
        )
    through_nvml(one, "nvmlDeviceSetPowerManagementLimit(gpu, 700000)")
    power_mw, reasons, limit_mw = map(int, shown.split())
    assert limit_mw == 200_000
    assert power_mw == pytest.approx(1000 * H200.chip.limiter_gain * 200, rel=0.02)
    assert reasons & 0x4, "software power cap"


@needs_nvml
def test_a_board_controllers_limit_gives_its_power_while_the_request_still_reads_as_set(one: RunningNode) -> None:
    show = "print(nvmlDeviceGetPowerManagementLimit(gpu), nvmlDeviceGetEnforcedPowerLimit(gpu))"
    with one.client() as client:
        client.fault(0, "bmc", limit_w=250.0)
        limited_w = pytest.approx(H200.chip.limiter_gain * 250.0, rel=0.03)

        def mean_w() -> float:
            start = client.truth()
            time.sleep(0.5)
            end = client.truth()
            return (end.energy_j - start.energy_j) / (end.time_s - start.time_s)

        with kept_busy(one, HEAVY):
            while mean_w() != limited_w:  # the limiter takes a while; a test that never ends has failed
                pass
        assert through_nvml(one, show) == "700000 250000"
        client.fault(0, "bmc", limit_w=None)
        assert through_nvml(one, show) == "700000 700000"
        with pytest.raises(BadSpec, match="is no power limit"):
            client.fault(0, "bmc", limit_w=-5)
        client.fault(0, "bmc", limit_w=500.0)
        client.fault(0, "mig", on=True)
        assert through_nvml(one, "print(nvmlDeviceGetMigMode(gpu)[0])") == "1"
        client.clear(0)
        assert through_nvml(one, show + "; print(nvmlDeviceGetMigMode(gpu)[0])") == "700000 700000\n0"


@needs_nvml
def test_the_counter_of_another_process_agrees_with_the_truth(one: RunningNode) -> None:
    with one.client() as client, kept_busy(one, LIGHT):
        time.sleep(0.2)
        start = client.truth()
        code = "a = nvmlDeviceGetTotalEnergyConsumption(gpu); b = time.monotonic(); time.sleep(1.5); "
        code += "print(nvmlDeviceGetTotalEnergyConsumption(gpu) - a, time.monotonic() - b)"
        counted_mj, lasted_s = map(float, through_nvml(one, code).split())
        end = client.truth()
    mean_w = (end.energy_j - start.energy_j) / (end.time_s - start.time_s)
    # Two edges of one update (0.1 s) each, and a counter call of 3.45 ms.
    assert counted_mj / 1000 == pytest.approx(lasted_s * mean_w, rel=0.02, abs=0.11 * mean_w)


@needs_nvml
def test_faults_reach_nvml_clients_and_go_away(one: RunningNode) -> None:
    attempt = """
    from pynvml import *
    nvmlInit()
    try:
        gpu = nvmlDeviceGetHandleByIndex(0)
        nvmlDeviceGetPowerUsage(gpu)
        nvmlDeviceSetPowerManagementLimit(gpu, 700000)
        nvmlDeviceGetTotalEnergyConsumption(gpu)
        print("fine")
    except NVMLError as error:
        print(type(error).__name__)
    """
    with one.client() as client:
        for kind, arguments, seen in (
            ("lost", {}, "NVMLError_GpuIsLost"),
            ("no_permission", {}, "NVMLError_NoPermission"),
            ("unsupported", {"groups": ["energy_counter"]}, "NVMLError_NotSupported"),
        ):
            client.fault(0, kind, **arguments)
            assert elsewhere(one, attempt) == seen
            client.clear(0)
            assert elsewhere(one, attempt) == "fine"
        client.fault(0, "slow", seconds=0.3, groups=["power"])
        took = through_nvml(one, "a = time.monotonic(); nvmlDeviceGetPowerUsage(gpu); print(time.monotonic() - a)")
        client.clear(0)
        assert float(took) >= 0.3
        client.fault(0, "foreign", power_limit_w=250.0)
        assert through_nvml(one, "print(nvmlDeviceGetPowerManagementLimit(gpu))") == "250000"
        with pytest.raises(BadSpec, match="no fault is called 'gremlins'"):
            client.fault(0, "gremlins")
        with pytest.raises(BadSpec, match="no group of calls is named"):
            client.fault(0, "unsupported", groups=["coffee"])
        client.fault(0, "reload")


@needs_nvml
def test_a_driver_reload_resets_the_counter_and_the_settings(one: RunningNode) -> None:
    link = Link(one.directory)
    link.work([LIGHT] * 100)  # so much that what it draws idle meanwhile, on a slow machine, is little beside it
    link.close()
    through_nvml(one, "nvmlDeviceSetPowerManagementLimit(gpu, 300000); nvmlDeviceSetGpuLockedClocks(gpu, 990, 990)")
    show = "print(nvmlDeviceGetTotalEnergyConsumption(gpu), nvmlDeviceGetPowerManagementLimit(gpu))"
    before_mj, limit_mw = map(int, through_nvml(one, show).split())
    with one.client() as client:
        client.fault(0, "reload")
        after_mj, limit_after_mw = map(int, through_nvml(one, show).split())
        assert limit_mw == 300_000
        assert limit_after_mw == 700_000
        assert after_mj < before_mj / 2
        link = Link(one.directory)
        done = link.work(LIGHT)
        link.close()
        assert done.finished_s - done.started_s == pytest.approx(0.02, rel=0.01)


@needs_nvml
def test_a_killed_simulator_reads_as_a_driver_error_and_work_on_it_as_lost() -> None:
    with node.spawn("sim:a100*2") as running:
        code = """
        import sys
        nvmlDeviceGetPowerUsage(gpu)
        print("up", flush=True)
        sys.stdin.read()
        try:
            nvmlDeviceGetPowerUsage(gpu)
            print("frozen")
        except NVMLError as error:
            print(type(error).__name__)
        """
        script = "from pynvml import *\nnvmlInit()\ngpu = nvmlDeviceGetHandleByIndex(1)\n" + textwrap.dedent(code)
        watcher = subprocess.Popen(
            [sys.executable, "-c", script],
            env=running.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert watcher.stdout is not None
        assert watcher.stdout.readline().strip() == "up"
        link = Link(running.directory)
        waiting: list[BaseException] = []

        def wait() -> None:
            try:
                link.work((60.0, 0.5, 100.0))
            except GpuLost as error:
                waiting.append(error)

        worker = threading.Thread(target=wait)
        worker.start()
        time.sleep(0.2)
        running.kill()
        worker.join(10.0)
        assert "has ended" in str(waiting[0])
        assert "NVMLError" in watcher.communicate()[0]
        with pytest.raises(GpuLost, match="start one with 'joulewise sim'"):
            Link(running.directory)
        assert not running.alive()
    assert not running.directory.exists()


def test_time_runs_twenty_times_as_fast_and_the_law_holds() -> None:
    with node.spawn("sim:h200", speed=20.0) as running, running.client() as client:
        assert client.speed == 20.0
        link = Link(running.directory)
        start_s, before_s = time.monotonic(), client.truth().time_s
        done = [link.work(Load(0.4, 0.9, 300.0), hidden=True) for _ in range(25)]
        wall_s, simulated_s = time.monotonic() - start_s, client.truth().time_s - before_s
        link.close()
        assert 10.0 < simulated_s / wall_s < 40.0
        assert done[-1].finished_s - done[0].started_s == pytest.approx(10.0, rel=1e-3)


def test_every_gpu_plays_the_load_that_was_named_as_the_simulators_own_process() -> None:
    with node.spawn("sim:h200,a100", load="transformer", speed=5.0) as running, running.client() as client:
        assert len(client.uuids) == 2
        start = [client.truth(index) for index in range(2)]
        time.sleep(0.6)
        end = [client.truth(index) for index in range(2)]
        for index, model in enumerate((H200, catalog.load("a100"))):
            mean_w = (end[index].energy_j - start[index].energy_j) / (end[index].time_s - start[index].time_s)
            assert mean_w > model.chip.idle_w


def test_the_simulator_is_cheap() -> None:
    with node.spawn("sim:h200*8", load="transformer") as running, running.client() as client:
        time.sleep(0.3)
        start_wall_s, start_s = time.monotonic(), client.status()["cpu_s"]
        time.sleep(2.0)
        share = (client.status()["cpu_s"] - start_s) / (time.monotonic() - start_wall_s)
    # 1.7 % on an idle two-core machine; processor time grows with contention, so the bound is generous.
    assert share < 0.08


def test_its_directory_is_private_and_leaves_with_it() -> None:
    with node.spawn("sim") as running:
        mode = running.directory.stat().st_mode & 0o777
        assert mode == (0o755 if os.geteuid() == 0 else 0o700)
        assert running.alive()
    assert not running.directory.exists()
    assert not running.alive()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_tidies_up_when_it_is_told_to_end(number: signal.Signals) -> None:
    with node.spawn("sim") as running:
        os.kill(running.pid, number)
        deadline_s = time.monotonic() + 10.0
        while running.alive() and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert not running.alive()
        assert not running.directory.exists()


def test_it_ends_with_the_process_that_started_it_however_that_ends(tmp_path: Path) -> None:
    code = """
    import os, signal
    from joulewise.device import node
    with node.spawn("sim") as running:
        print(running.pid, running.directory, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    pid, directory = done.stdout.split()
    assert done.returncode == -signal.SIGKILL
    deadline_s = time.monotonic() + 10.0
    while Path(directory).exists() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert not Path(directory).exists()
    assert not Path(f"/proc/{pid}/exe").exists()


def test_a_given_directory_is_kept_and_can_hold_only_one_simulator(tmp_path: Path) -> None:
    home = tmp_path / "gpus"
    with node.spawn("sim", directory=home) as running:
        assert running.directory == home
        with pytest.raises(BadSpec, match="already runs in"), node.spawn("sim", directory=home):
            pass
    assert home.is_dir()
    assert not any(home.iterdir())


def test_it_takes_the_place_of_one_that_was_killed_in_its_directory(tmp_path: Path) -> None:
    with node.spawn("sim", directory=tmp_path) as killed:
        killed.kill()
    with node.spawn("sim", directory=tmp_path) as running, running.client() as client:
        assert client.truth().power_w > 0


def test_one_that_cannot_start_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "fine.toml"
    catalog.save(replace(H200, sm_mhz=Choices(345.0, 1980.0, 1.0)), model)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("TMPDIR", str(home))
    with pytest.raises(BadSpec, match="1636 SM"), node.spawn(f"sim:{model}"):
        pass
    assert not any(home.iterdir())


@pytest.mark.parametrize(
    ("spec", "arguments", "message"),
    [
        ("sim:warp9", {}, "no GPU model is called 'warp9'"),
        ("nvml:0", {}, "names no virtual GPUs"),
        ("sim", {"speed": 0.0}, "speed=0 is not above 0"),
        ("sim", {"speed": 1e6}, r"speed=1e\+06 is above 1000"),
        ("sim", {"load": "nothing"}, "no workload is called 'nothing'"),
    ],
)
def test_what_cannot_be_simulated_is_refused_in_one_line(spec: str, arguments: dict[str, float], message: str) -> None:
    with pytest.raises(BadSpec, match=message), node.spawn(spec, **arguments):  # type: ignore[arg-type]
        pass


def test_a_seed_draws_the_cards() -> None:
    uuids = []
    for seed in (1, 1, None, None):
        with node.spawn("sim", seed=seed) as running, running.client() as client:
            uuids.append(client.uuids[0])
    assert uuids[0] == uuids[1]
    assert uuids[2] != uuids[3]


def test_a_simulator_whose_starter_has_gone_before_it_was_up_ends_in_silence() -> None:
    order = Order(("h200",)).to_json()
    process = subprocess.Popen(
        [sys.executable, "-c", "from joulewise.device.simulator import main; import sys; sys.exit(main())", order],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdin.close()
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert (process.wait(timeout=30), said) == (0, "")
