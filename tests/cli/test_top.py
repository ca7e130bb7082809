"""``joulewise top``: one look in this process, the live table in a terminal of its own."""

import json
import subprocess

import pytest

from joulewise.cli import main
from joulewise.cli.gpus import opened
from joulewise.core.errors import BadSpec
from tests import preloaded
from tests.cli.conftest import OURS


def top(*args: str, capsys) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["top", *args])
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err


def test_one_look_is_a_table_with_a_row_a_gpu(recording, capsys):
    code, out, err = top("--once", "--gpu", f"replay:{recording}", capsys=capsys)
    assert (code, err) == (0, "")
    head, row = out.splitlines()
    assert head.split()[:4] == ["GPU", "power", "/", "limit"]
    assert row.startswith("0 H200")
    assert " / 700 W" in row


def test_one_look_as_json_has_units_in_its_keys(recording, capsys):
    code, out, _ = top("--once", "--json", "--gpu", f"replay:{recording}", capsys=capsys)
    seen = json.loads(out)
    assert code == 0
    assert seen["time"].endswith("+00:00")
    gpu = seen["gpus"][0]
    assert gpu["name"] == "NVIDIA H200"
    assert gpu["power_limit_w"] == 700.0
    assert gpu["power_w"] > 0
    assert gpu["counter_j"] > 0
    assert gpu["pids"] is None  # a recording does not know
    assert gpu["energy_j"] is None  # nothing was watched


def test_a_stream_of_json_counts_joules_and_ends_when_nobody_reads(recording, environ):
    words = ["top", "--json", "--interval", "0.3", "--gpu", f"replay:{recording}"]
    pipe = subprocess.PIPE
    with preloaded.Command(*words, env=environ, stdout=pipe, stderr=pipe) as process:
        looks = [json.loads(process.stdout.readline())["gpus"][0] for _ in range(3)]
        process.stdout.close()
        said = process.stderr.read()
        process.wait(timeout=120)
    used = [look["energy_j"] for look in looks]
    assert used == sorted(used)
    assert used[-1] > 0
    assert said == ""


def test_the_live_table_ends_on_q_and_gives_the_terminal_back(recording, environ, in_terminal):
    argv = [*OURS, "top", "--interval", "0.2", "--gpu", f"replay:{recording}"]
    terminal = in_terminal(argv, **environ)
    terminal.read_until("q quits")
    terminal.read_until("H200")
    terminal.type("q")
    assert terminal.finish() == 0
    assert terminal.shown.count("\x1b[?1049h") == terminal.shown.count("\x1b[?1049l") == 1


def test_ctrl_c_ends_it_with_130_and_no_traceback(recording, environ, in_terminal):
    argv = [*OURS, "top", "--gpu", f"replay:{recording}"]
    terminal = in_terminal(argv, **environ)
    terminal.read_until("q quits")
    terminal.type("\x03")
    assert terminal.finish() == 130
    assert "Traceback" not in terminal.plain()


def test_a_terminal_without_cursor_gets_one_table_after_another(recording, environ, in_terminal):
    argv = [*OURS, "top", "--interval", "0.2", "--gpu", f"replay:{recording}"]
    terminal = in_terminal(argv, **{**environ, "TERM": "dumb"})
    terminal.read_until("0 H200")
    terminal.type("\x03")
    assert terminal.finish() == 130
    assert "\x1b" not in terminal.shown


def test_virtual_gpus_are_seen_at_work(environ, virtual_nvml):
    ran = preloaded.run("top", "--once", "--json", "--gpu", "sim:h200,a100", env=environ, check=True)
    h200, a100 = json.loads(ran.stdout)["gpus"]
    assert (h200["name"], a100["name"]) == ("NVIDIA H200", "NVIDIA A100 80GB PCIe")
    assert h200["power_w"] > 200
    assert len(h200["pids"]) == 1
    assert h200["backend"] == "nvml"


def test_watching_ends_with_the_last_gpu(tmp_path, recording, environ):
    short = tmp_path / "short.jsonl"
    short.write_text("\n".join(recording.read_text().splitlines()[:14]) + "\n")
    ran = preloaded.run("top", "--interval", "0.5", "--gpu", f"replay:{short}", env=environ)
    assert ran.returncode == 1
    assert ran.stderr.count("\n") == 1
    assert "is over" in ran.stderr
    assert "no reading" in ran.stdout


@pytest.mark.parametrize("spec", ["bogus:1", "sim:no-such-gpu", "replay:no-such-file.jsonl"])
def test_what_cannot_be_watched_is_one_line_and_exit_code_2(spec, capsys):
    code, out, err = top("--gpu", spec, capsys=capsys)
    assert (code, out, err.count("\n")) == (2, "", 1)
    with pytest.raises(BadSpec), opened(spec):
        pass


def test_without_a_driver_the_way_out_is_named(environ, no_driver):
    ran = preloaded.run("top", "--once", env={**environ, "LD_LIBRARY_PATH": no_driver})
    assert ran.returncode == 1
    assert ran.stderr.count("\n") == 1
    assert "'--gpu sim:h200' gives a virtual one, see 'joulewise doctor'" in ran.stderr
