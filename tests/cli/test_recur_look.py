"""``joulewise recur status`` and its like on a job that has run: read only, as a page and as JSON."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from joulewise.cli import main
from joulewise.cli.recur_desk import opened_desk
from joulewise.core.measurement import Outcome
from joulewise.core.series import EpochCost, Platform
from tests.cli.shell_trials import JOB

H200, A100 = Platform("NVIDIA H200", 1, 700.0), Platform("NVIDIA A100", 2, 800.0)

Recur = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def database(tmp_path_factory) -> Path:
    """Three recurrences, of which the second ran on other GPUs."""
    file = tmp_path_factory.mktemp("jobs") / "jobs.db"
    with opened_desk(JOB.name, str(file)) as desk:
        desk.register(JOB)
        for number, platform in enumerate((H200, A100, H200)):
            asked = desk.ask(f"r{number}", platform)
            cost = EpochCost(10.0, 3e3 * platform.gpus)
            spent = {"duration_s": 40.0, "energy_j": 4 * cost.energy_j, "profile": [cost]}
            desk.tell(asked.trial, outcome=Outcome.REACHED, epochs=4, **spent)
    return file


@pytest.fixture
def recur(database, capsys) -> Recur:
    """``recur("status", "nightly")`` as from a shell: the exit code, stdout and stderr."""

    def run(*args: str, at: Path = database) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["recur", *args, "--database", str(at)])
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run


def fetched(recur: Recur, *args: str) -> dict:
    code, out, err = recur(*args, "--json")
    assert (code, err, out.count("\n")) == (0, "", 1)
    return json.loads(out)


def test_every_view_is_a_page_and_one_line_of_json(recur):
    for view, key in (("status", "beliefs"), ("history", "trials"), ("frontier", "points")):
        code, page, err = recur(view, "nightly")
        assert (code, err) == (0, "")
        assert page.count("\n") > 2
        assert fetched(recur, view, "nightly")[key]
    assert fetched(recur, "list")["jobs"] == ["nightly"]
    assert recur("list") == (0, "nightly\n", "")


def test_looking_changes_nothing(recur, database):
    before = hashlib.sha256(database.read_bytes()).digest()
    for view in ("status", "history", "frontier"):
        recur(view, "nightly")
    assert hashlib.sha256(database.read_bytes()).digest() == before


def test_one_looks_at_the_last_gpus_or_at_those_that_are_named(recur):
    assert fetched(recur, "status", "nightly")["platform"]["gpu_name"] == "NVIDIA H200"
    for part in ("a100", "2x", "NVIDIA A100"):
        assert fetched(recur, "status", "nightly", "--on", part)["platform"]["gpu_name"] == "NVIDIA A100"
        assert fetched(recur, "frontier", "nightly", "--on", part)["platform"]["gpus"] == 2
    code, _, err = recur("status", "nightly", "--on", "V100")
    assert (code, err) == (2, "joulewise: --on V100: it has run on 1x NVIDIA H200, 2x NVIDIA A100\n")


@pytest.mark.parametrize(("most", "seen"), [("1", [2]), ("2", [1, 2]), ("50", [0, 1, 2]), ("0", [0, 1, 2])])
def test_the_history_is_the_latest_in_order(recur, most, seen):
    assert [trial["trial"] for trial in fetched(recur, "history", "nightly", "-n", most)["trials"]] == seen


def test_a_job_that_is_not_there_is_said_with_those_that_are(recur, tmp_path):
    for view in ("status", "history", "frontier"):
        code, out, err = recur(view, "nightli")
        assert (code, out) == (2, "")
        assert err.startswith("joulewise: no job is called 'nightli'; there is 'nightly'; ")
    assert "there are: nightly;" in recur("status", "quite-another")[2]
    assert "there is none yet;" in recur("status", "nightly", at=tmp_path / "empty.db")[2]


def test_where_there_is_no_job_the_list_says_how_to_begin_one(recur, tmp_path):
    code, out, err = recur("list", at=tmp_path / "empty.db")
    assert (code, out) == (0, "")
    assert err == "joulewise: there is no job yet; 'joulewise recur run --job' begins one\n"
    assert not (tmp_path / "empty.db").exists()


def test_a_job_that_has_not_run_yet_says_so(recur, tmp_path):
    file = tmp_path / "new.db"
    with opened_desk(JOB.name, str(file)) as desk:
        desk.register(JOB)
    for view in ("status", "frontier"):
        code, _, err = recur(view, "nightly", at=file)
        assert (code, err) == (2, "joulewise: nothing has run yet; 'joulewise recur run' is the first\n")


def test_a_picture_that_cannot_be_is_refused_by_the_name_it_was_given(recur, tmp_path):
    code, _, err = recur("plot", "nightly", "belief.gif")
    assert (code, err) == (2, "joulewise: FILE belief.gif: the name must end in .svg, .png, .pdf\n")
    code, _, err = recur("plot", "nightly", str(tmp_path / "absent" / "belief.svg"))
    assert code == 2
    assert "cannot be written: no such file or directory" in err


def test_of_all_trials_as_many_are_shown_as_are_asked_for_and_0_is_all(recur):
    assert [each["trial"] for each in fetched(recur, "history", "nightly", "-n", "1")["trials"]] == [2]
    assert len(fetched(recur, "history", "nightly", "-n", "0")["trials"]) == 3
    code, out, err = recur("history", "nightly", "-n", "-5")
    assert (code, out, err) == (2, "", "joulewise: -n -5 is no number of trials; write -n 50, or -n 0 for all\n")
