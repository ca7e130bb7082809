import json
import re
import sys

import pytest

from joulewise.cli import main
from joulewise.core.event import Began, Finished
from joulewise.report.claim import Claim, percent
from joulewise.report.story import Story
from joulewise.store import Database, Memory, SqliteJournal
from joulewise.store.views import measured_stream
from tests.cli import made_up


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("JOULEWISE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "160")
    return tmp_path


def keep(*names, finished=True):
    for name in names:
        journal = SqliteJournal(Database(), name)
        for event in made_up.run(name, hold=60):
            if finished or type(event).__name__ not in ("Proven", "Finished"):
                journal.append(event)


def history(*args, capsys, code=0):
    with pytest.raises(SystemExit) as ended:
        main(["history", *map(str, args)])
    assert ended.value.code == code
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_before_the_first_run_it_says_how_to_begin(capsys):
    out, _ = history(capsys=capsys)
    assert "joulewise run --tune" in out
    assert "nothing has been learnt yet" in history("--learnt", capsys=capsys)[0]


def test_runs_are_listed_latest_first_with_what_they_saved(capsys):
    keep("first")
    keep("second", finished=False)
    out, _ = history(capsys=capsys)
    heads, second, first, said, more = out.splitlines()
    titles = ["run (begun, UTC)", "took", "saved", "slower", "GPU", "command"]  # of joules nobody knows
    assert re.split("  +", heads) == titles
    assert said.endswith("± is half of a 95 % interval")
    assert "'joulewise report RUN'" in more
    assert re.fullmatch(r"first +6 min \d+ s +7\.\d % ± \d\.\d+ % +\S+ % ± \S+ % +H200 +python train.py.*", first)
    assert re.match(r"second .* running +H200 ", second)


def test_of_a_long_command_the_list_shows_what_there_is_room_for(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    facts = {"command": ["/opt/venv/bin/python", "train.py", "x" * 80], "gpu_names": ["NVIDIA H200"], "tuned": False}
    SqliteJournal(Database(), "plain").append(Began(0.0, "plain", facts))
    row = history(capsys=capsys)[0].splitlines()[1]
    assert re.search(r"H200  python train.py x+…$", row)
    assert len(row) <= 60


def test_the_list_as_json_has_every_number(capsys):
    keep("first", "second")
    answer = json.loads(history("--json", "-n", 1, capsys=capsys)[0])
    assert [each["run"] for each in answer] == ["second"]
    assert answer[0]["claim"]["energy_change"] == pytest.approx(-0.08, abs=0.02)
    assert answer[0]["facts"]["seed"] == 1


def test_one_run_is_told_chapter_by_chapter(capsys):
    keep("first")
    out, _ = history("fi", capsys=capsys)
    assert out.startswith("first: saved ")
    assert "shown to keep the bound by itself: at most 2 % slower" in out


def test_a_tuned_trial_says_what_it_used_in_all_and_to_which_job_it_belongs(capsys):
    series = {"job": "nightly", "trial": 3, "batch_size": 64, "recurrence": "r3"}
    for event in made_up.run("first", hold=60, series=series):
        SqliteJournal(Database(), "first").append(event)
    measured = {"energy_j": 2e5, "energy_error_j": 300.0, "duration_s": 400.0, "exit_code": None}
    SqliteJournal(Database(), measured_stream("first")).append(Finished(400.0, "trial 3", {"measured": measured}))
    headline, command, used, job = history("first", capsys=capsys)[0].splitlines()[:4]
    assert headline.startswith("first: saved ")
    assert command.startswith("  python train.py")
    assert used == "  used 200.00 ± 0.30 kJ in 6 min 40 s in all"
    assert job == "  a trial of nightly at batch size 64; see 'joulewise recur status'"
    assert "200 kJ" in history(capsys=capsys)[0].splitlines()[1].replace("200.0 ", "200 ")


def test_a_report_can_be_written_once_more(home, capsys):
    keep("first")
    history("first", "--report", home / "again.html", capsys=capsys)
    with pytest.raises(SystemExit) as ended:
        main(["verify", str(home / "again.html")])
    assert ended.value.code == 0


def test_a_report_needs_a_run_and_a_place(home, capsys):
    assert "needs a RUN" in history("--report", home / "x.html", capsys=capsys, code=2)[1]
    keep("first")
    assert "cannot be written" in history("first", "--report", home / "no" / "x.html", capsys=capsys, code=2)[1]


def test_what_was_learnt_is_told_by_workload(capsys):
    phases = {"": {"chosen": {"sm_mhz": 1500}, "verified": True}, "rollout": {"chosen": {}}}
    payload = {"phases": phases, "energy_change": -0.081, "energy_change_error": 0.003}
    journal = SqliteJournal(Database(), "first")
    for event in made_up.run("first", hold=20, fingerprint="f" * 16):
        journal.append(event)
    Memory(Database()).keep("f" * 16, "GPU-1234", "NVIDIA H200", payload)
    out, _ = history("--learnt", capsys=capsys)
    for words in (
        "ffffffffffffffff",
        "NVIDIA H200",
        "python train.py",
        "SM clock at most 1500 MHz, shown to keep the bound by itself",
        "rollout: default",
    ):
        assert words in out
    assert json.loads(history("--learnt", "--json", capsys=capsys)[0])[0]["payload"] == payload


def test_under_each_card_stands_what_came_of_its_own_last_run(capsys):
    for number, uuid in enumerate(("GPU-1", "GPU-2")):
        journal = SqliteJournal(Database(), f"run-{number}")
        for event in made_up.run(f"run-{number}", hold=20, fingerprint="f" * 16, gpus=[uuid], unix_s=1e6 * number):
            journal.append(event)
        Memory(Database()).keep("f" * 16, uuid, "NVIDIA H200", {"phases": {}})
    out, _ = history("--learnt", capsys=capsys)
    blocks = {block.split()[3]: block for block in out.split("f" * 16)[1:] for block in ["f " + block]}
    assert {uuid: "run-0" in block for uuid, block in blocks.items()} == {"GPU-1": True, "GPU-2": False}


def test_what_is_forgotten_is_gone(capsys):
    keep("first", "second")
    Memory(Database()).keep("f" * 16, "GPU-1", "NVIDIA H200", {})
    assert "run first" in history("--forget", "first", capsys=capsys)[1]
    assert "workload ffff" in history("--forget", "f" * 16, capsys=capsys)[1]
    said = history("--forget", "all", "--yes", capsys=capsys)[1]
    assert "forgotten: 1 run and what was learnt about 0 workloads" in said
    assert json.loads(history("--json", capsys=capsys)[0]) == []
    assert "no run is called 'x'" in history("--forget", "x", capsys=capsys, code=2)[1]


def test_what_was_learnt_elsewhere_than_the_runs_are_is_said_to_go(home, monkeypatch, capsys):
    Memory(Database()).keep("f" * 16, "GPU-1", "NVIDIA H200", {})
    monkeypatch.setenv("JOULEWISE_DATABASE", str(home / "other.db"))
    _, err = history("--forget", "all", capsys=capsys, code=2)
    learnt = f"what was learnt about 1 workload in {home / 'home' / 'joulewise.db'}"
    assert f"forget 0 runs and {learnt}, with every proof, in {home / 'other.db'}" in err


def test_everything_is_forgotten_only_by_one_who_says_so(home, capsys):
    keep("first", "second")
    Memory(Database()).keep("f" * 16, "GPU-1", "NVIDIA H200", {})
    _, err = history("--forget", "all", capsys=capsys, code=2)
    assert "forget 2 runs and what was learnt about 1 workload, with every proof, in " in err
    assert str(home / "home" / "joulewise.db") in err
    assert "add --yes" in err
    assert len(json.loads(history("--json", capsys=capsys)[0])) == 2


@pytest.mark.parametrize(("answer", "left", "code"), [("n", 1, 1), ("y", 0, 0)])
def test_at_a_terminal_it_is_asked_first(answer, left, code, environ, in_terminal, monkeypatch, capsys):
    monkeypatch.setenv("JOULEWISE_HOME", environ["JOULEWISE_HOME"])
    keep("first")
    terminal = in_terminal([sys.executable, "-m", "joulewise", "history", "--forget", "all"], **environ)
    terminal.read_until("forget 1 run and what was learnt about 0 workloads, with every proof, in ")
    terminal.read_until("[y/N]")
    terminal.type(f"{answer}\r")
    assert terminal.finish() == code
    assert ("nothing was forgotten" in terminal.plain()) is (answer == "n")
    assert len(json.loads(history("--json", capsys=capsys)[0])) == left


def test_a_run_that_is_still_running_is_never_forgotten(capsys):
    keep("first")
    keep("second", finished=False)
    assert "run second is still running" in history("--forget", "second", capsys=capsys, code=2)[1]
    _, err = history("--forget", "all", "--yes", capsys=capsys)
    assert "1 run still running, and kept: second" in err
    assert "forgotten: 1 run and" in err
    assert [each["run"] for each in json.loads(history("--json", capsys=capsys)[0])] == ["second"]


@pytest.mark.parametrize(("args", "other"), [(("first",), "first"), (("--learnt",), "--learnt")])
def test_what_is_to_be_forgotten_is_named_once(args, other, capsys):
    keep("first")
    _, err = history(*args, "--forget", "all", "--yes", capsys=capsys, code=2)
    assert f"--forget all goes without {other}: nothing was forgotten" in err
    assert len(json.loads(history("--json", capsys=capsys)[0])) == 1


def test_as_many_runs_are_listed_as_are_asked_for_and_0_is_all(capsys):
    keep(*(f"run-{number:02}" for number in range(22)))
    for many, shown in ((0, 22), (3, 3), (20, 20)):
        assert len(json.loads(history("--json", "-n", many, capsys=capsys)[0])) == shown
    assert "-n -5 is no number of runs; write -n 20, or -n 0 for all" in history("-n", -5, capsys=capsys, code=2)[1]


def test_runs_that_are_kept_elsewhere_are_named_by_file_or_url(home, capsys):
    keep("first")
    Database().close()
    (home / "home").rename(home / "elsewhere")
    file = home / "elsewhere" / "joulewise.db"
    for named in (("--database", file), ("--database", f"sqlite:///{file}"), ("--journal", file)):
        assert [each["run"] for each in json.loads(history("--json", *named, capsys=capsys)[0])] == ["first"]
    assert "is no file" in history("--database", home / "none.db", capsys=capsys, code=2)[1]
    assert not (home / "none.db").exists()
    # The server is asked, not taken for a file; without its packages that is said.
    _, err = history("--database", "postgresql://127.0.0.1:1/x", capsys=capsys, code=1)
    assert "is no file" not in err


def test_a_damaged_store_is_one_line(home, capsys):
    (home / "home").mkdir()
    (home / "home" / "joulewise.db").write_bytes(b"damaged" * 100)
    for args in ((), ("--learnt",), ("--forget", "all", "--yes")):
        _, err = history(*args, capsys=capsys, code=1)
        assert "move it away" in err
        assert err.count("\n") == 1


def test_list_run_report_and_what_was_learnt_say_the_same_figures(home, capsys):
    for event in made_up.run("first", hold=12, fingerprint="f" * 16):  # few windows: where ways to compute would differ
        SqliteJournal(Database(), "first").append(event)
    Memory(Database()).keep("f" * 16, "GPU-1234", "NVIDIA H200", {"energy_change": -0.5, "energy_change_error": 0.1})
    claim = Claim.of(Story.of(event for _, event in SqliteJournal(Database(), "first").read()))
    energy = percent(-claim.energy_change, claim.energy_half)
    assert f"  {energy}" in history(capsys=capsys)[0]
    assert energy in history("first", capsys=capsys)[0]
    assert energy in history("--learnt", capsys=capsys)[0]
    assert not re.search(r"\b50(\.0)? ?%", history("--learnt", capsys=capsys)[0])
    assert json.loads(history("--json", capsys=capsys)[0])[0]["claim"] == claim.to_json()


def test_a_run_that_held_nothing_shows_no_saving(capsys):
    for event in made_up.run("first", hold=0):
        SqliteJournal(Database(), "first").append(event)
    row = history(capsys=capsys)[0].splitlines()[1]
    assert "nothing held" in row
    assert "%" not in row


def test_a_report_is_named_as_a_page(home, capsys):
    keep("first")
    assert "name it x.txt.html" in history("first", "--report", home / "x.txt", capsys=capsys, code=2)[1]


def test_one_damaged_memory_or_run_does_not_hide_the_others(capsys):
    keep("first", "second")
    for name in ("a" * 16, "b" * 16):
        Memory(Database()).keep(name, "GPU-1", "NVIDIA H200", {})
    with Database().writing() as connection:
        connection.execute("UPDATE learnt SET payload = '[]' WHERE fingerprint = ?", ("a" * 16,))
        connection.execute("UPDATE events SET event = '{' WHERE stream = 'second' AND kind = 'Seen'")
    out, err = history("--learnt", capsys=capsys)
    assert "b" * 16 in out
    assert "a" * 16 + " is damaged" in err
    rows = history(capsys=capsys)[0].splitlines()
    assert "damaged" in next(row for row in rows if row.startswith("second"))
    assert "%" in next(row for row in rows if row.startswith("first"))


def test_runs_that_were_only_measured_are_listed_with_what_they_used(capsys):
    keep("tuned")
    facts = {"command": ["python", "serve.py"], "gpu_names": ["NVIDIA H200"], "tuned": False}
    measured = {"energy_j": 4e5, "energy_error_j": 300.0, "duration_s": 1000.0, "exit_code": 0, "gpus": []}
    journal = SqliteJournal(Database(), "plain")
    journal.append(Began(0.0, "plain", facts))
    assert " running " in history(capsys=capsys)[0].splitlines()[1]
    journal.append(Finished(1000.0, "ended", {"measured": measured}))
    row = history(capsys=capsys)[0].splitlines()[1]
    assert re.match(r"plain +16 min 40 s +400(\.\d+)? kJ +H200 +python serve.py", row)
    headline = "plain: 400.00 ± 0.30 kJ in 16 min 40 s, 400 W on average"
    assert history("plain", capsys=capsys)[0] == f"{headline}\n  python serve.py  on H200\n"
    plain, tuned = json.loads(history("--json", capsys=capsys)[0])
    assert (plain["measured"], tuned["measured"]) == (measured, None)
    assert json.loads(history("plain", "--json", capsys=capsys)[0])["measured"] == measured
    assert "run plain, 2 events" in history("--forget", "plain", capsys=capsys)[1]
