"""``joulewise run`` as a user has it: a process, its output, its exit code. A replayed GPU where one is enough."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from joulewise.cli import main
from joulewise.device.recording import load
from tests import preloaded

PYTHON = sys.executable


class Joulewise:
    """``joulewise run`` in a process of its own."""

    def __init__(self, environ: dict[str, str], recording: Path, where: Path) -> None:
        self.environ, self.recording, self.where = environ, recording, where

    def argv(self, *flags: str, command: list[str] | None, gpu: str | None = "replay") -> list[str]:
        spec = [] if gpu is None else ["--gpu", f"replay:{self.recording}" if gpu == "replay" else gpu]
        return [PYTHON, "-m", "joulewise", "run", *spec, *flags, "--", *(command or [])]

    def run(self, *flags: str, command: list[str], gpu: str | None = "replay", **environ: str):
        words = self.argv(*flags, command=command, gpu=gpu)[3:]
        return preloaded.run(*words, env={**self.environ, **environ}, cwd=self.where)

    def start(self, *flags: str, command: list[str]) -> preloaded.Command:
        words, pipe = self.argv(*flags, command=command)[3:], subprocess.PIPE
        return preloaded.Command(*words, env=self.environ, cwd=self.where, stdout=pipe, stderr=pipe)


@pytest.fixture
def joulewise(environ, recording, tmp_path) -> Joulewise:
    return Joulewise(environ, recording, tmp_path)


# What it is for.


def test_a_command_is_measured_and_left_alone(joulewise):
    ran = joulewise.run("--json", "out.json", command=["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (ran.returncode, ran.stdout) == (3, "out\n")
    lines = ran.stderr.splitlines()
    assert lines[0] == "err"
    assert lines[1].startswith("joulewise: ")
    assert " W on average  NVIDIA H200" in lines[1]
    assert lines[-1] == "  sh ended with exit code 3"
    written = json.loads((joulewise.where / "out.json").read_text())
    assert written["exit_code"] == 3
    assert written["outcome"] == "failed"
    assert written["energy_j"] > 0
    assert written["error_j"] > 0


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_when_nobody_reads_the_summary_the_result_and_the_exit_code_are_kept(unbuffered, joulewise):
    unread, stderr = os.pipe()
    os.close(unread)
    argv = joulewise.argv("--json", "out.json", command=["sh", "-c", "exit 3"])
    environ = {**joulewise.environ, "PYTHONUNBUFFERED": unbuffered}
    ran = subprocess.run(argv, env=environ, cwd=joulewise.where, stderr=stderr, timeout=120)
    os.close(stderr)
    assert ran.returncode == 3
    assert json.loads((joulewise.where / "out.json").read_text())["exit_code"] == 3


def test_a_virtual_gpu_is_seen_by_the_command_and_measured_through_nvml(joulewise, virtual_nvml):
    works = (
        "from joulewise.device.work import work\n"
        "import pynvml; pynvml.nvmlInit()\n"
        "print(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(1)))\n"
        "true_j = sum(work((0.5, 0.8, 200.0), gpu=1).energy_j for _ in range(3))\n"
        "print(true_j)\n"
    )
    flags = ["--json", "-", "--record", "run.jsonl", "--plot", "power.svg"]
    ran = joulewise.run(*flags, command=[PYTHON, "-c", works], gpu="sim:a100*2")
    assert ran.returncode == 0, ran.stderr
    name, true_j, *_, result = ran.stdout.splitlines()
    assert name == "NVIDIA A100 80GB PCIe"
    measured = json.loads(result)
    assert [gpu["backend"] for gpu in measured["gpus"]] == ["nvml", "nvml"]
    busy = measured["gpus"][1]
    # The window is wider than the work: Python starts and ends in it, at idle power.
    assert float(true_j) - 4 * busy["error_j"] < busy["energy_j"] < float(true_j) + 4 * busy["error_j"] + 150
    assert busy["peak_power_w"] > 200 > measured["gpus"][0]["peak_power_w"]
    recorded = load(joulewise.where / "run.jsonl")
    assert recorded.complete
    assert [name for name, _ in recorded.windows] == ["run"]
    assert len(recorded.readings[1]) > 10
    assert (joulewise.where / "power.svg").stat().st_size > 5000


def test_silence_while_the_command_runs(joulewise):
    with joulewise.start(command=["sh", "-c", "sleep 0.6; echo done >&2"]) as process:
        first = process.stderr.readline()
        process.communicate()
    assert first == "done\n"


def test_quiet_says_nothing_and_verbose_says_which_gpus_and_why(joulewise):
    measured = ["run", "--gpu", f"replay:{joulewise.recording}", "--", "true"]
    ran = preloaded.run("-q", *measured, env=joulewise.environ)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    ran = preloaded.run("-v", *measured, env=joulewise.environ)
    assert "joulewise: measuring 0 NVIDIA H200 GPU-" in ran.stderr
    assert f"(--gpu replay:{joulewise.recording})" in ran.stderr


def test_the_commands_own_flags_are_its_own(joulewise):
    ran = joulewise.run(command=["echo", "--gpu", "--json", "-q", "--"])
    assert ran.stdout == "--gpu --json -q --\n"
    ran = preloaded.run(*joulewise.argv(command=None)[3:-1], "echo", "--live", "--help", env=joulewise.environ)
    assert ran.stdout == "--live --help\n"


def test_a_result_takes_the_place_of_an_older_one_only_when_there_is_one(joulewise):
    old = joulewise.where / "out.json"
    before = json.dumps({"command": ["old"], "exit_code": 0, "duration_s": 1.0, "energy_j": None, "more": "x" * 10_000})
    old.write_text(before)
    joulewise.run("--json", "out.json", command=["no-such-command"])
    assert old.read_text() == before
    joulewise.run("--json", "out.json", command=["true"])
    assert json.loads(old.read_text())["command"] == ["true"]


def test_a_recording_takes_the_place_of_an_older_one_only_when_a_command_can_start(joulewise, without_gpu):
    old = joulewise.where / "run.jsonl"
    before = '{"joulewise": "recording", "version": 1, "gpus": []}\n'
    old.write_text(before)
    assert joulewise.run("--record", "run.jsonl", command=["no-such-command"]).returncode == 127
    assert joulewise.run("--record", "run.jsonl", command=["true"], gpu=None, **without_gpu).returncode == 1
    assert old.read_text() == before
    assert joulewise.run("--record", "run.jsonl", command=["true"]).returncode == 0
    assert load(old).complete


@pytest.mark.parametrize("flag", ["--json", "--record"])
def test_what_somebody_else_wrote_is_never_replaced(joulewise, flag):
    script = joulewise.where / "train.py"
    script.write_text("print('trained')")
    ran = joulewise.run(flag, "train.py", command=["touch", "started"])
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1)
    assert f"{flag} train.py is there, and is not what {flag} writes; nothing was started" in ran.stderr
    assert (script.read_text(), (joulewise.where / "started").exists()) == ("print('trained')", False)


@pytest.mark.parametrize("flag", ["--json", "--record", "--plot", "--report"])
def test_a_word_of_the_command_is_no_place_for_a_result(joulewise, flag):
    name = {"--plot": "it.svg", "--report": "it.html"}.get(flag, "it")
    (joulewise.where / name).write_text("data")
    tune = ["--tune"] if flag == "--report" else []
    ran = joulewise.run(*tune, flag, name, command=["sh", "-c", "cp ./$1 copy", "sh", name])
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1)
    assert f"{flag} {name} is also a word of the command, and would be written over; nothing was started" in ran.stderr
    assert sorted(path.name for path in joulewise.where.iterdir() if path.is_file()) == [name]


def test_an_empty_file_makes_way_for_a_result(joulewise):
    (joulewise.where / "made-by-mktemp").touch()
    assert joulewise.run("--json", "made-by-mktemp", command=["true"]).returncode == 0
    assert json.loads((joulewise.where / "made-by-mktemp").read_text())["exit_code"] == 0


def test_json_is_the_last_line_even_if_the_command_left_its_own_unfinished(joulewise):
    ran = joulewise.run("--json", "-", command=["printf", "50 %%"])
    first, last = ran.stdout.splitlines()
    assert first == "50 %"
    assert json.loads(last)["command"] == ["printf", "50 %%"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--json", "out", "--record", "./out"], "--json and --record both name"),
        (["--record", "a.svg", "--plot", "a.svg"], "--record and --plot both name"),
        (["--record", "-"], "name a file for the recording"),
    ],
)
def test_two_outputs_are_two_files(joulewise, flags, said):
    ran = joulewise.run(*flags, command=["touch", "started"])
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1)
    assert said in ran.stderr
    assert not (joulewise.where / "started").exists()
    assert joulewise.run("--json", "/dev/null", "--record", "/dev/null", command=["true"]).returncode == 0


def test_json_to_a_closed_stdout_is_refused_before_the_command_starts(joulewise):
    argv = joulewise.argv("--json", "-", command=["touch", "started"])
    closed = ["sh", "-c", 'exec "$@" >&-', "sh", *argv]
    ran = subprocess.run(closed, env=joulewise.environ, cwd=joulewise.where, stderr=subprocess.PIPE, text=True)
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1)
    assert not (joulewise.where / "started").exists()


def test_a_command_that_is_no_text_and_no_formula_can_be_plotted(joulewise):
    command = ["true", os.fsdecode(b"\xff"), r"$\frac{$ $x$"]
    ran = joulewise.run("--plot", "power.svg", "--json", "out.json", command=command)
    assert (ran.returncode, "could not" in ran.stderr) == (0, False)
    assert json.loads((joulewise.where / "out.json").read_text())["command"] == command
    assert (joulewise.where / "power.svg").stat().st_size > 5000


# Signals.


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_reach_the_command_and_the_result_is_still_told(joulewise, number):
    with joulewise.start("--json", "out.json", command=["sh", "-c", "echo ready; exec sleep 60"]) as process:
        process.stdout.readline()
        process.send_signal(number)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 128 + number
    assert f"sh ended with signal {signal.Signals(number).name} (exit code {128 + number})" in said
    assert json.loads((joulewise.where / "out.json").read_text())["outcome"] == "stopped_early"


def test_ctrl_c_in_a_terminal_lets_the_command_finish_its_way(joulewise, in_terminal):
    tidy = (
        "import sys, time\n"
        "try:\n    print('ready', flush=True); time.sleep(60)\n"
        "except KeyboardInterrupt:\n    print('saved'); sys.exit(7)\n"
    )
    terminal = in_terminal(joulewise.argv(command=[PYTHON, "-c", tidy]), **joulewise.environ)
    terminal.read_until("ready")
    terminal.type("\x03")
    assert terminal.finish() == 7
    assert terminal.plain().index("saved") < terminal.plain().index("joulewise: ")


def test_the_live_view_stays_below_and_leaves_nothing_behind(joulewise, in_terminal):
    talks = "import time\nfor n in range(4): print('line', n, flush=True); time.sleep(0.4)"
    terminal = in_terminal(joulewise.argv("--live", command=[PYTHON, "-c", talks]), **joulewise.environ)
    assert terminal.finish() == 0
    assert "\x1b[1;22r" in terminal.shown
    assert "── joulewise ──" in terminal.plain()
    assert " / 700 W" in terminal.plain()
    after = terminal.shown.rpartition("\x1b[r")[2]
    assert after.count("joulewise: ") == 1
    assert "──" not in after


def test_the_live_view_is_only_for_terminals(joulewise):
    ran = joulewise.run("--live", command=["sleep", "0.6"])
    assert ran.returncode == 0
    assert "\x1b" not in ran.stderr
    assert "──" not in ran.stderr


# What goes wrong.


def in_process(args: list[str], capsys) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(args)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("joulewise: ")
    return ended.value.code, captured.err


def test_a_command_that_is_not_found_is_127_with_a_way_out(joulewise):
    ran = joulewise.run(command=["no-such-command"])
    assert ran.returncode == 127
    assert ran.stderr == "joulewise: command not found: no-such-command; check the name after '--'\n"
    script = joulewise.where / "train.py"
    script.write_text("print(1)")
    assert "write './train.py'" in joulewise.run(command=["train.py"]).stderr
    ran = joulewise.run(command=["./train.py"])
    assert ran.returncode == 126
    assert "cannot execute ./train.py: permission denied" in ran.stderr


def test_a_command_that_cannot_be_executed_is_told_why(joulewise):
    (joulewise.where / "bare").write_text("echo hello")
    (joulewise.where / "stray").write_text("#!/no/such/interpreter\n")
    for name in ("bare", "stray"):
        (joulewise.where / name).chmod(0o755)
    for name, code, said in (
        ("", 127, "is an empty word"),
        ("./", 126, "is a directory; name a program"),
        ("./bare", 126, "write 'sh ./bare'"),
        ("./stray", 127, "first line (#!)"),
    ):
        ran = joulewise.run(command=[name])
        assert (ran.returncode, ran.stderr.count("\n")) == (code, 1), ran.stderr
        assert said in ran.stderr


def test_a_killed_command_is_128_plus_9(joulewise):
    ran = joulewise.run("--record", "run.jsonl", command=["sh", "-c", "kill -KILL $$"])
    assert ran.returncode == 137
    assert "sh ended with signal SIGKILL (exit code 137)" in ran.stderr
    assert load(joulewise.where / "run.jsonl").complete


@pytest.mark.parametrize("spec", ["bogus", "bogus:0", "sim:no-such-gpu", "sim:h200*0", "nvml:", "nvml:3-1"])
def test_an_unknown_gpu_specification_is_refused_with_examples(spec, capsys):
    code, said = in_process(["run", "--gpu", spec, "--", "true"], capsys)
    assert code == 2
    assert spec.partition(":")[2].partition("*")[0] in said
    assert "sim:" in said or "h200" in said or "1-3" in said


@pytest.mark.parametrize("flag", ["--record", "--json", "--plot"])
@pytest.mark.parametrize("name", ["missing/run.svg", "."])
def test_a_file_that_cannot_be_written_is_said_before_the_command_starts(flag, name, tmp_path, recording, capsys):
    witness = tmp_path / "started"
    bad = str(tmp_path / name) if name != "." or flag != "--plot" else "/proc/power.svg"
    code, said = in_process(["run", "--gpu", f"replay:{recording}", flag, bad, "--", "touch", str(witness)], capsys)
    assert code == 2
    assert bad in said
    assert "nothing was started" in said
    assert not witness.exists()


def test_an_unknown_kind_of_plot_is_refused_before_the_command_starts(recording, capsys):
    code, said = in_process(["run", "--gpu", f"replay:{recording}", "--plot", "power.doc", "--", "true"], capsys)
    assert (code, ".svg" in said) == (2, True)


def test_a_corrupt_recording_is_refused_and_the_line_named(tmp_path, recording, capsys):
    corrupt = tmp_path / "corrupt.jsonl"
    lines = recording.read_text().splitlines()
    corrupt.write_text("\n".join([*lines[:5], "{nonsense", *lines[5:]]) + "\n")
    code, said = in_process(["run", "--gpu", f"replay:{corrupt}", "--", "true"], capsys)
    assert code == 2
    assert "line 6" in said
    assert "head -n 5" in said
    absent = tmp_path / "absent.jsonl"
    code, said = in_process(["run", "--gpu", f"replay:{absent}", "--", "true"], capsys)
    assert (code, str(absent) in said) == (2, True)


@pytest.fixture
def without_gpu(environ, no_driver, tmp_path) -> dict[str, str]:
    """An environment in which there is no GPU, whatever the machine has."""
    return {**environ, "LD_LIBRARY_PATH": no_driver, "JOULEWISE_POWERCAP_ROOT": str(tmp_path / "none")}


def test_without_a_gpu_and_without_host_energy_nothing_is_started(joulewise, without_gpu):
    ran = joulewise.run(command=["touch", "started"], gpu=None, **without_gpu)
    assert ran.returncode == 1
    assert ran.stderr.count("\n") == 1
    assert ran.stderr.startswith("joulewise: nothing to measure with: ")
    assert "--gpu sim:h200" in ran.stderr
    assert "joulewise doctor" in ran.stderr
    assert not (joulewise.where / "started").exists()


def zone(root: Path, *, energy_uj: int | None) -> Path:
    """A RAPL zone as the kernel shows it; without a counter that could be read for None."""
    path = root / "intel-rapl:0"
    path.mkdir(parents=True)
    (path / "name").write_text("package-0\n")
    (path / "max_energy_range_uj").write_text("262143328850\n")
    if energy_uj is None:
        (path / "energy_uj").mkdir()
    else:
        (path / "energy_uj").write_text(f"{energy_uj}\n")
    return path


def test_without_a_gpu_the_host_is_measured_and_the_reason_given(joulewise, without_gpu, tmp_path):
    package = zone(tmp_path / "powercap", energy_uj=1_000_000)
    uses = f"echo 13500000 > {package}/energy_uj; sleep 0.1"
    ran = joulewise.run(
        "--json",
        "-",
        command=["sh", "-c", uses],
        gpu=None,
        **{**without_gpu, "JOULEWISE_POWERCAP_ROOT": str(package.parent)},
    )
    assert ran.returncode == 0
    assert "joulewise: measuring the host only: no GPU to read" in ran.stderr
    assert "joulewise: 12.50 J in " in ran.stderr
    result = json.loads(ran.stdout)
    assert result["host"] == {"energy_j": 12.5, "reason": None}
    assert (result["energy_j"], result["gpus"]) == (None, [])


def test_unreadable_host_counters_are_a_reason_never_a_zero(joulewise, tmp_path):
    package = zone(tmp_path / "powercap", energy_uj=None)
    ran = joulewise.run("--json", "-", command=["true"], JOULEWISE_POWERCAP_ROOT=str(package.parent))
    assert ran.returncode == 0
    host = json.loads(ran.stdout)["host"]
    assert host["energy_j"] is None
    assert host["reason"].count("package-0") == 1


def test_a_host_counter_that_goes_away_is_told(joulewise, without_gpu, tmp_path):
    package = zone(tmp_path / "powercap", energy_uj=1)
    environ = {**without_gpu, "JOULEWISE_POWERCAP_ROOT": str(package.parent)}
    ran = joulewise.run(command=["sh", "-c", f"echo junk > {package}/energy_uj"], gpu=None, **environ)
    assert ran.returncode == 0
    assert "host: package-0: could not be read: it holds 'junk', which is no number" in ran.stderr


FAULTS = {
    "lost": "from joulewise.device.node import NodeClient; NodeClient(os.environ['JOULEWISE_VNVML']).fault(0, 'lost')",
    "killed": (
        "import signal, pathlib\n"
        "for stat in pathlib.Path('/proc').glob('[0-9]*/stat'):\n"
        "    if stat.read_text().rpartition(')')[2].split()[1] == str(os.getppid()):\n"
        "        if b'joulewise.device.simulator' in (stat.parent / 'cmdline').read_bytes():\n"
        "            os.kill(int(stat.parent.name), signal.SIGKILL)\n"
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_gpu_or_simulator_that_goes_away_costs_only_its_own_part(joulewise, fault, virtual_nvml):
    script = joulewise.where / "job.py"
    script.write_text(f"import os, time\ntime.sleep(0.7)\n{FAULTS[fault]}\ntime.sleep(0.5)\nprint('finished')\n")
    flags = ["--json", "out.json", "--record", "run.jsonl"]
    ran = joulewise.run(*flags, command=[PYTHON, str(script)], gpu="sim:h200")
    assert (ran.returncode, ran.stdout) == (0, "finished\n")
    assert "Traceback" not in ran.stderr
    assert "GPU lost" in ran.stderr
    assert "before the end" in ran.stderr
    result = json.loads((joulewise.where / "out.json").read_text())
    part = result["gpus"][0]
    assert part["outcome"] == "failed"
    assert 0.4 < part["duration_s"] < result["duration_s"] - 0.3
    assert part["energy_j"] > 0
    recorded = load(joulewise.where / "run.jsonl")
    assert len(recorded.readings[0]) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("live", [True, False])
def test_a_driver_that_hangs_does_not_keep_the_exit_code(joulewise, in_terminal, live, virtual_nvml):
    hangs = (
        "import os, time\nfrom joulewise.device.node import NodeClient\ntime.sleep(0.7)\n"
        "NodeClient(os.environ['JOULEWISE_VNVML']).fault(0, 'hung')\ntime.sleep(1)\nraise SystemExit(3)\n"
    )
    flags = ["--json", str(joulewise.where / "out.json"), "--record", str(joulewise.where / "run.jsonl")]
    argv = joulewise.argv(*flags, *(["--live"] if live else []), command=[PYTHON, "-c", hangs], gpu="sim:h200")
    terminal = in_terminal(argv, **joulewise.environ)
    assert terminal.finish() == 3
    assert "the driver hangs" in terminal.plain()
    result = json.loads((joulewise.where / "out.json").read_text())
    assert (result["exit_code"], result["energy_j"]) == (3, None)
    assert "the driver hangs" in result["gpus"][0]["reason"]
    assert len(load(joulewise.where / "run.jsonl").readings[0]) >= 3


def test_a_disk_that_fills_up_costs_the_recording_not_the_command(joulewise):
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    ran = joulewise.run("--json", "/dev/full", command=["echo", "done"])
    assert (ran.returncode, ran.stdout) == (0, "done\n")
    assert "joulewise: --json /dev/full could not be written: No space left on device" in ran.stderr


def test_auto_is_a_virtual_gpu_where_there_is_no_other(joulewise, without_gpu, virtual_nvml):
    ran = joulewise.run(command=["sh", "-c", "echo $JOULEWISE_VNVML"], gpu="auto", **without_gpu)
    assert ran.returncode == 0
    assert "joulewise-sim" in ran.stdout
    assert "NVIDIA H200" in ran.stderr
    assert not os.path.exists(ran.stdout.strip())  # noqa: PTH110 - tidied up


def test_ctrl_c_that_ends_the_command_at_once_does_not_cost_the_result(joulewise, in_terminal):
    terminal = in_terminal(joulewise.argv(command=["sh", "-c", "echo ready; exec sleep 60"]), **joulewise.environ)
    terminal.read_until("ready")
    terminal.type("\x03")
    assert terminal.finish() == 130
    assert " W on average  NVIDIA H200" in terminal.plain()
    assert "Traceback" not in terminal.plain()


def test_a_live_run_outlives_its_terminal(in_terminal, joulewise):
    out = joulewise.where / "out.json"
    command = ["sh", "-c", "trap '' HUP; sleep 2; exit 3"]
    terminal = in_terminal(joulewise.argv("--live", "--json", str(out), command=command), **joulewise.environ)
    terminal.read_until("H200")
    terminal.hang_up()
    assert terminal.process.wait(timeout=120) == 3
    assert json.loads(out.read_text())["exit_code"] == 3
