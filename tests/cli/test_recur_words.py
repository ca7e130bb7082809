"""What became of a recurrence, told to people and to programs; and nothing that goes wrong in telling fails the job."""

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from joulewise.cli import recur_words as words
from joulewise.cli.outputs import JsonFile
from joulewise.cli.recur_loop import Recurrence, Trial
from joulewise.cli.recur_trial import Ended
from joulewise.core.errors import NotKept
from joulewise.core.event import Asked
from joulewise.core.measurement import Outcome
from joulewise.core.series import EpochCost, Platform, Purpose
from joulewise.tune.desk import Desk
from joulewise.tune.series import SeriesSummary, SizeBelief
from tests.cli.shell_trials import JOB, PLATFORM, desk

SUMMARY = SeriesSummary(3, 4, 32, 6e4, 200.0, 2e4, 60.0, 1.5e4, 50.0, 0.5, 0.2, 0.05)


class Away(Desk):
    """Can be asked and told, and cannot be looked at."""

    def beliefs(self, platform: Platform) -> list[SizeBelief]:
        raise NotKept("the disk is full; make room")


def trial(outcome: Outcome, size: int, *, command: Sequence[str] = ("train", "--token", "hush"), **more) -> Trial:
    asked = Asked(0.0, size, "r3", size, PLATFORM, Purpose.EXPLORE, f"why {size}", 600.0)
    ended = Ended(outcome, 3, 30.0, 9e3, 50.0, 1.0, 80.0, (EpochCost(10.0, 3e3),), (), 0, 0.5)
    return Trial(asked, tuple(command), replace(ended, **more))


def recurrence(*trials: Trial, **more) -> Recurrence:
    return Recurrence("r3", list(trials), **more)


DONE = recurrence(trial(Outcome.STOPPED_EARLY, 8, notes=("too dear",)), trial(Outcome.REACHED, 32, notes=("a note",)))


def test_the_result_comes_first_with_what_all_trials_took_and_then_why():
    first, why, before, *rest = words.lines(DONE, JOB, SUMMARY, [], virtual=True)
    assert first == "nightly #3: reached val_acc 0.5 in 3 epochs at batch size 32: 18.00 kJ in 1 min 00 s (virtual)"
    assert why == "why 32"
    assert before == "before it: batch size 8 stopped after 3 epochs (too dear)"
    assert rest[0].startswith("so far 3 recurrences, 4 trials: ")
    assert rest[-2:] == ["a note", "'joulewise recur status nightly' tells what is believed about each batch size"]


def test_without_a_summary_the_rest_is_said_all_the_same():
    first, *rest = words.lines(recurrence(trial(Outcome.REACHED, 16, epochs=1)), JOB, None, [], virtual=False)
    assert first == "nightly: reached val_acc 0.5 in 1 epoch at batch size 16: 9.000 kJ in 30.0 s"
    assert len(rest) == 2


def test_the_json_has_every_trial_whole_and_no_secret_of_a_command():
    written = words.as_json(DONE, JOB, PLATFORM, [], SUMMARY, virtual=False)
    assert json.loads(json.dumps(written, allow_nan=False)) == written
    assert [each["outcome"] for each in written["trials"]] == ["stopped_early", "reached"]
    assert (written["reached"], written["number"], written["energy_j"]) == (True, 3, 18e3)
    assert "hush" not in json.dumps(written)


def test_every_key_is_named_where_the_surface_is_written_down():
    written = words.as_json(DONE, JOB, PLATFORM, [], None, virtual=False)
    named = words.__doc__.replace("``…_j``", "``before_training_j``")
    assert not [key for key in (*written, *written["trials"][0]) if f"``{key}``" not in named]


def test_a_recurrence_that_did_not_get_there_is_its_error_even_for_who_wants_quiet(capsys):
    done = recurrence(trial(Outcome.FAILED, 16), error="it did not\nget there", exit_code=1)
    words.tell(done, JOB, desk(), PLATFORM, None, quiet=True, virtual=False)
    assert capsys.readouterr().err == "joulewise: nightly #0: it did not get there\n"


def test_quiet_is_quiet_where_all_went_well(capsys):
    words.tell(DONE, JOB, desk(), PLATFORM, None, quiet=True, virtual=False)
    assert capsys.readouterr().err == ""


def test_a_store_that_cannot_be_read_is_a_remark_and_the_json_is_written(capsys, tmp_path):
    done = recurrence(trial(Outcome.REACHED, 16))
    file = tmp_path / "out.json"
    words.tell(done, JOB, desk(Away), PLATFORM, JsonFile(str(file)), quiet=False, virtual=False)
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("joulewise: nightly: reached val_acc 0.5")
    assert said[-1] == "joulewise: what was learnt is not all kept: the disk is full; make room"
    written = json.loads(file.read_text())
    assert (written["reached"], written["summary"], written["number"]) == (True, None, None)


@pytest.mark.parametrize("quiet", [False, True])
def test_a_file_that_has_become_unwritable_is_a_remark(capsys, tmp_path, quiet):
    where = tmp_path / "there"
    where.mkdir()
    file = JsonFile(str(where / "out.json"))
    for left in where.iterdir():
        left.unlink()
    where.rmdir()
    words.tell(DONE, JOB, desk(), PLATFORM, file, quiet=quiet, virtual=False)
    assert capsys.readouterr().err.splitlines()[-1].endswith("could not be written: No such file or directory")
