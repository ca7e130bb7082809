"""``joulewise recur`` as a user has it: processes, their output, their exit codes. A replayed GPU does for most."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import preloaded

PYTHON = sys.executable
TRAINED = Path(__file__).parent / "trained" / "epochs.py"


class Recur:
    """One job, kept in a directory of its own."""

    def __init__(self, environ: dict[str, str], recording: Path, where: Path) -> None:
        self.where = where
        self.environ = {**environ, "JOULEWISE_HOME": str(where / "home")}
        self.gpu = ["--gpu", f"replay:{recording}", "--no-tune"]

    def argv(self, how: str, *flags: str, target: str = "val_acc>=0.5", sizes: str = "8..32") -> list[str]:
        terms = {"--job": "nightly", "--batch-sizes": sizes, "--default": "16", "--target": target, "--max-epochs": "8"}
        job = [word for flag, value in terms.items() if flag not in flags for word in (flag, value)]
        command = [PYTHON, str(TRAINED), how, "{batch_size}", str(self.where)]
        return [PYTHON, "-m", "joulewise", "recur", "run", *job, *self.gpu, *flags, "--", *command]

    def run(self, how: str, *flags: str, **terms: str) -> subprocess.CompletedProcess[str]:
        return preloaded.run(*self.argv(how, *flags, **terms)[3:], env=self.environ, cwd=self.where)

    def start(self, how: str) -> preloaded.Command:
        pipe = subprocess.PIPE
        return preloaded.Command(*self.argv(how)[3:], env=self.environ, cwd=self.where, stdout=pipe, stderr=pipe)

    def look(self, *args: str) -> subprocess.CompletedProcess[str]:
        return preloaded.run("recur", *args, env=self.environ, cwd=self.where)

    def history(self) -> list[dict]:
        looked = self.look("history", "nightly", "--json")
        assert looked.returncode == 0, looked.stderr
        return json.loads(looked.stdout)["trials"]

    @property
    def ran(self) -> list[int]:
        """The batch sizes that were run, in order."""
        file = self.where / "ran"
        return [int(line) for line in file.read_text().split()] if file.exists() else []


@pytest.fixture
def recur(environ, recording, tmp_path) -> Recur:
    return Recur(environ, recording, tmp_path)


# What it is for.


def test_the_first_recurrence_runs_the_default_and_says_what_it_took(recur):
    ran = recur.run("asks", "--json", "out.json")
    assert ran.returncode == 0, ran.stderr
    assert recur.ran == [16]
    assert (recur.where / "saved").read_text() == "5"  # it stopped by itself, right after the epoch
    first = ran.stderr.splitlines()[0]
    assert re.match(r"joulewise: nightly #1: reached val_acc 0\.5 in 5 epochs at batch size 16: .*J in ", first)
    written = json.loads((recur.where / "out.json").read_text())
    assert written["reached"] is True
    (trial,) = written["trials"]
    assert (trial["batch_size"], trial["outcome"], trial["epochs"], trial["value"]) == (16, "reached", 5, 0.5)
    assert trial["energy_j"] > 0
    (told,) = recur.history()
    assert (told["batch_size"], told["outcome"], told["epochs"]) == (16, "reached", 5)
    listed = preloaded.run("history", "--json", env=recur.environ, check=True)
    (kept,) = json.loads(listed.stdout)  # a run like any other
    assert (kept["run"], kept["facts"]["series"]["job"]) == (trial["run"], "nightly")
    assert kept["measured"]["energy_j"] >= trial["energy_j"]


def test_a_pattern_on_the_output_needs_no_line_in_the_script(recur):
    ran = recur.run("prints", "--metric-pattern", r"epoch (?P<epoch>\d+) .*val_acc=(?P<val_acc>[0-9.]+)")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[0] == "epoch 1 of many | val_acc=0.1 loss=1.0"
    assert "reached val_acc 0.5 in 5 epochs" in ran.stderr


def test_a_script_that_does_not_ask_gets_sigterm_and_time_for_a_checkpoint(recur):
    ran = recur.run("checkpoint")
    assert ran.returncode == 0, ran.stderr
    assert (recur.where / "saved").read_text() == "checkpoint"


def test_one_that_does_not_listen_is_killed_after_its_grace(recur):
    ran = recur.run("stubborn", "--grace", "0.3s", "--json", "-")
    assert ran.returncode == 0, ran.stderr
    (trial,) = json.loads(ran.stdout.splitlines()[-1])["trials"]
    assert (trial["outcome"], trial["exit_code"]) == ("reached", 137)
    assert any("killed: it had not ended 0.3 s after" in note for note in trial["notes"])


def test_what_a_shell_had_started_ends_with_it_and_has_its_time_too(recur):
    argv = recur.argv("checkpoint")
    at = argv.index("--") + 1
    wrapped = ["sh", "-c", f"{PYTHON} {TRAINED} checkpoint {{batch_size}} {recur.where}; echo not reached"]
    ran = preloaded.run(*argv[3:at], *wrapped, env=recur.environ)
    assert (ran.returncode, ran.stdout) == (0, ""), ran.stderr
    assert (recur.where / "saved").read_text() == "checkpoint"


def test_it_may_go_on_after_the_target(recur):
    ran = recur.run("ends", "--no-stop-at-target", target="val_acc>=0.1")
    assert ran.returncode == 0, ran.stderr
    assert "reached val_acc 0.1 in 1 epochs" in ran.stderr.replace("1 epoch ", "1 epochs ")


def test_the_next_recurrences_learn_and_say_what_they_know(recur):
    for _ in range(2):
        ran = recur.run("asks")
        assert ran.returncode == 0, ran.stderr
    assert [trial["outcome"] for trial in recur.history()].count("reached") == 2
    shown = recur.look("status", "nightly")
    assert shown.returncode == 0
    assert re.search(r"^ *16\* ", shown.stdout, re.MULTILINE)
    status = json.loads(recur.look("status", "nightly", "--json").stdout)
    assert [belief["batch_size"] for belief in status["beliefs"]] == [8, 16, 32]
    assert recur.look("list").stdout.startswith("nightly")
    points = json.loads(recur.look("frontier", "nightly", "--json").stdout)["points"]
    assert points[0]["time_s"] > 0
    drawn = recur.look("plot", "nightly", str(recur.where / "nightly.svg"))
    assert drawn.returncode == 0, drawn.stderr
    assert (recur.where / "nightly.svg").stat().st_size > 5000


def test_on_a_virtual_gpu_epochs_are_measured_in_its_own_time_and_clocks_are_tuned(recur, virtual_nvml):
    works = (
        "import joulewise, sys\nfrom joulewise.device.work import work\n"
        "for epoch in range(1, 9):\n"
        "    for step in range(10): work((0.3, 0.9, 300.0)); joulewise.step()\n"
        "    joulewise.metric(epoch=epoch, val_acc=epoch / 10)\n"
        "    if joulewise.should_stop(): break\n"
    )
    recur.gpu = ["--gpu", "sim:h200", "--speed", "20"]
    argv = recur.argv("unused", "--json", "-")
    words = [*argv[3 : argv.index("--") + 1], PYTHON, "-c", works, "{batch_size}"]
    ran = preloaded.run(*words, env=recur.environ, cwd=recur.where)
    assert ran.returncode == 0, ran.stderr
    (trial,) = json.loads(ran.stdout.splitlines()[-1])["trials"]
    assert trial["epochs"] == 5
    assert trial["tune"]["wanted"] == "Zeus's cost with η = 0.5"
    cost = trial["profile"][0]
    assert 2.7 < cost["duration_s"] < 6.0  # ten steps of 0.3 s or somewhat slower: seconds of the GPU, not of the wall
    assert 100 < cost["energy_j"] / cost["duration_s"] < 700


def test_a_server_may_keep_the_job_instead(recur):
    pytest.importorskip("uvicorn", reason="the extra 'server' is not installed")
    with preloaded.Command("serve", "--port", "0", env=recur.environ, stderr=subprocess.PIPE) as server:
        url = re.search(r"http://[\w.]+:\d+", server.stderr.readline())[0]
        try:
            ran = recur.run("asks", "--server", url)
            shown = recur.look("status", "nightly", "--server", url, "--json")
        finally:
            server.terminate()
    assert ran.returncode == 0, ran.stderr
    assert [each["runs"] for each in json.loads(shown.stdout)["beliefs"]] == [0, 1, 0]


# Bad input: a clear error, and history kept.


def test_no_batch_size_reaches_the_target(recur):
    ran = recur.run("never")
    assert ran.returncode == 1
    (line,) = [line for line in ran.stderr.splitlines() if line.startswith("joulewise: ")]
    assert "val_acc came to 0.1 at best in 8 epochs at the default batch size 16, the target is val_acc>=0.5" in line
    assert [(told["outcome"], told["epochs"]) for told in recur.history()] == [("failed", 8)]


@pytest.mark.parametrize(("how", "names"), [("misspelt", "val_accuracy, loss"), ("other", "loss")])
def test_a_misspelt_target_is_known_after_the_first_epoch_and_another_name_after_the_second(recur, how, names):
    ran = recur.run(how)
    assert ran.returncode == 2
    assert f"no metric is called 'val_acc', told are: {names}; " in ran.stderr
    (told,) = recur.history()
    assert (told["outcome"], told["epochs"]) == ("preempted", 1 if how == "misspelt" else 2)


def test_a_target_that_was_written_wrong_is_written_right_under_the_same_name(recur):
    assert recur.run("asks", target="val_ac>=0.5").returncode == 2
    ran = recur.run("asks", target="val_acc>=0.5")
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.startswith("joulewise: nightly #1: reached val_acc 0.5 in 5 epochs at batch size 16")
    assert [told["outcome"] for told in recur.history()] == ["preempted", "reached"]


def test_a_path_that_was_mistyped_night_after_night_bars_no_batch_size(recur):
    for _ in range(3):
        assert recur.run("crash").returncode == 7
    ran = recur.run("asks")
    assert ran.returncode == 0, ran.stderr
    assert recur.ran == [16] * 4


def test_a_command_that_tells_nothing_says_how_to(recur):
    ran = recur.run("silent")
    assert ran.returncode == 2
    assert "add joulewise.metric(epoch=…, val_acc=…) to it, or use --metric-pattern" in ran.stderr


def test_a_child_that_crashes_at_once_is_its_exit_code_and_one_line(recur):
    ran = recur.run("crash")
    assert (ran.returncode, recur.ran) == (7, [16])
    assert ran.stderr.splitlines() == [
        "joulewise: nightly #1: the command ended with exit code 7 before its first epoch"
    ]
    assert [told["outcome"] for told in recur.history()] == ["failed"]


def test_a_metric_that_is_never_a_number_has_failed_and_one_that_is_later_has_not(recur):
    ran = recur.run("nan")
    assert ran.returncode == 1
    assert "val_acc was never a number" in ran.stderr
    assert [told["outcome"] for told in recur.history()] == ["failed"]
    again = recur.run("once-nan")
    assert again.returncode == 0, again.stderr
    assert recur.history()[-1]["outcome"] == "reached"
    # The fifth epoch reaches the target; a sixth may be told before the script is stopped.
    notes = recur.history()[-1]["notes"]
    assert any(re.fullmatch("val_acc was no number 1 of [56] times", note) for note in notes), notes


def test_out_of_memory_is_followed_by_a_smaller_size(recur):
    flags = ["--default", "32"]
    ran = recur.run("out-of-memory", *flags)
    assert ran.returncode == 0, ran.stderr
    assert "batch size 32 ran out of memory after 0 epochs" in ran.stderr
    assert recur.run("out-of-memory", *flags).returncode == 0
    outcomes = [(told["batch_size"], told["outcome"]) for told in recur.history()]
    assert outcomes[0] == (32, "out_of_memory")
    assert all(size < 32 and outcome == "reached" for size, outcome in outcomes[1:])


def test_a_corrupt_database_is_one_line_and_stays_as_it_is(recur):
    home = recur.where / "home"
    home.mkdir()
    (home / "joulewise.db").write_bytes(b"this is no database" * 100)
    ran = recur.run("asks")
    assert (ran.returncode, recur.ran) == (1, [])
    assert "it is damaged or no database; move it away" in ran.stderr
    assert ran.stderr.count("\n") == 1
    assert (home / "joulewise.db").read_bytes() == b"this is no database" * 100


def test_one_name_for_two_spaces_is_refused_and_the_first_is_kept(recur):
    assert recur.run("asks").returncode == 0
    before = recur.history()
    for change in ({"sizes": "8..64"}, {"target": "val_acc>=0.6"}):
        ran = recur.run("asks", **change)
        assert ran.returncode == 2
        assert "nightly" in ran.stderr
        assert ran.stderr.count("\n") == 1
    assert recur.run("asks", "--eta", "0.9").returncode == 2
    assert recur.history() == before
    assert recur.ran == [16]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (["--default", "20"], "the default batch size 20 is none of 8, 16, 32"),
        (["--max-epochs", "0"], "max_epochs must be 1 or more"),
        (["--job", "my job"], "a job's name has up to 100 letters"),
        (["--target", "val_acc"], "is no target"),
        (["--lr", "0.1"], "the command has no {learning_rate}"),
        (["--metric-pattern", "val_acc=([0-9.]+)"], "names no metric"),
        (["--server", "http://127.0.0.1:1", "--database", "x.db"], "say one of them"),
        (["--token-file", "token"], "name it with --server"),
        (["--grace", "soon"], "is no time"),
        (["--eta", "2"], "outside 0"),
    ],
)
def test_bad_flags_are_one_line_and_nothing_runs(recur, change, says):
    ran = recur.run("asks", *change)
    assert ran.returncode == 2
    assert says in ran.stderr
    assert ran.stderr.count("\n") == 1
    assert recur.ran == []


def test_a_command_that_is_not_there_is_a_shells_exit_code_and_leaves_no_trial(recur):
    argv = recur.argv("unused")
    words = [*argv[3 : argv.index("--") + 1], "no-such-program", "{batch_size}"]
    ran = preloaded.run(*words, env=recur.environ)
    assert (ran.returncode, ran.stderr) == (
        127,
        "joulewise: command not found: no-such-program; check the name after '--'\n",
    )
    assert recur.look("list").stdout == ""


def test_views_of_a_job_that_is_not_there_say_which_are(recur):
    assert recur.run("asks").returncode == 0
    for verb in ("status", "history", "frontier"):
        looked = recur.look(verb, "nightli")
        assert looked.returncode == 2
        assert "nightly" in looked.stderr


# Interrupted.


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_to_us_ends_the_child_and_the_trial_is_preempted(recur, number, code):
    with recur.start("waits") as process:
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(number)
        _, said = process.communicate(timeout=120)
    assert process.returncode in (code, 1)  # Python's own end by Ctrl-C is 130
    assert "stopped before it had reached its target" in said
    assert [told["outcome"] for told in recur.history()] == ["preempted"]


def test_ctrl_c_in_a_terminal_reaches_the_child_once(recur, in_terminal):
    terminal = in_terminal(recur.argv("waits"), **recur.environ)
    terminal.read_until("waiting")
    terminal.type("\x03")
    assert terminal.finish() in (130, 1)
    assert terminal.plain().count("KeyboardInterrupt") == 1
    assert [told["outcome"] for told in recur.history()] == ["preempted"]


def test_a_killed_child_is_preempted_not_failed(recur):
    with recur.start("waits") as process:
        assert process.stdout.readline() == "waiting\n"
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        (child,) = [pid for pid in children if "epochs.py" in Path(f"/proc/{pid}/cmdline").read_text()]
        os.kill(int(child), signal.SIGKILL)
        process.communicate(timeout=120)
    assert process.returncode == 137
    (told,) = recur.history()
    assert (told["outcome"], told["notes"]) == ("preempted", ["somebody killed it"])
