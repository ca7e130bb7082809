"""One trial: how it ended is told from what it said, how it left, and who stopped it. Real commands."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from joulewise.cli.objectives import Wanted
from joulewise.cli.recur_output import Output
from joulewise.cli.recur_stop import Stop
from joulewise.cli.recur_trial import Ended, Terms, tried
from joulewise.cli.tuning import Tuning
from joulewise.core.measurement import Outcome
from joulewise.core.series import EpochCost
from joulewise.report.meter import Meter
from joulewise.report.summaries import State, Summaries
from joulewise.store import open_store, views
from joulewise.tune.desk import LEASE_S, Desk, Standing
from joulewise.tune.series import CRASHED
from tests.cli.shell_trials import JOB, PLATFORM, WAITS, desk, tells, terms


class Impatient(Desk):
    """Gives every trial one epoch."""

    def limit(self, trial: int, profile: Sequence[EpochCost] = ()) -> int:
        return 1

    def progress(
        self, trial: int, epochs: int, profile: Sequence[EpochCost] = (), lease_s: float = LEASE_S
    ) -> Standing:
        super().progress(trial, epochs, profile, lease_s)
        return Standing(1, epochs < 1)


@pytest.fixture
def usual(recording) -> Iterator[Terms]:
    with terms(recording) as made:
        yield made


def run(script: str, terms: Terms, kind: type[Desk] = Desk) -> Ended:
    at = desk(kind)
    return tried(at.ask("r1", PLATFORM), ["sh", "-c", script], terms, at)


def test_at_its_target_it_is_stopped_and_its_epochs_and_joules_are_counted(usual):
    ended = run(f"{tells(0.1, 0.2, 0.6)}; {WAITS}", usual)
    assert (ended.outcome, ended.epochs, ended.value) == (Outcome.REACHED, 3, 0.6)
    assert ended.duration_s > 0
    assert ended.energy_j > 0
    assert (ended.exit_code, ended.notes, ended.hopeless) == (128 + 15, (), None)


def test_it_is_kept_as_a_run_with_its_joules_and_readings_and_where_it_belongs(recording, tmp_path):
    with terms(recording, database=f"{tmp_path}/runs.db") as made:
        ended = run(f"{tells(0.1)}; sleep 1.2; {tells(0.1, 0.6)}; {WAITS}", made)
    store = open_store(f"{tmp_path}/runs.db")
    (told,), _ = Summaries(store).page()
    assert (told.name, told.state, told.tuned) == (ended.run, State.FINISHED, False)
    assert told.energy_j == pytest.approx(ended.energy_j + ended.before_j)
    assert told.duration_s == pytest.approx(ended.duration_s + ended.before_s)
    # It was we who ended it, at its target: its SIGTERM is no fault of the training's.
    assert (told.exit_code, "exit code" in told.headline) == (None, False)
    kept = views.one(store.tables, told.name)
    assert kept.finished.why == "trial 0 at batch size 16: reached"
    assert kept.facts["series"] == {"job": "nightly", "trial": 0, "batch_size": 16, "recurrence": "r1"}
    (uuid,) = store.readings().gpus(told.name)
    assert len(store.readings().read(told.name, uuid).time_s) >= 2
    store.close()


def test_one_that_fails_by_itself_is_kept_with_its_exit_code(recording, tmp_path):
    with terms(recording, database=f"{tmp_path}/runs.db") as made:
        run("exit 3", made)
    store = open_store(f"{tmp_path}/runs.db")
    (told,), _ = Summaries(store).page()
    assert told.exit_code == 3
    store.close()


@pytest.mark.parametrize("database", ["mysql://x", "/proc/none/runs.db"])
def test_a_store_that_cannot_be_written_is_a_line_and_the_trial_goes_on(database, recording, capfd):
    with terms(recording, database=database) as made:
        ended = run(f"{tells(0.6)}; {WAITS}", made)
    assert (ended.outcome, ended.run) == (Outcome.REACHED, None)
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("joulewise: ")]
    assert line.startswith("joulewise: this run is not kept")


def test_it_may_go_on_to_its_own_end(recording):
    with terms(recording, stop_at_target=False) as made:
        ended = run(f"{tells(0.6, 0.2)}; sleep 0.2; exit 3", made)
    assert (ended.outcome, ended.epochs, ended.value, ended.exit_code) == (Outcome.REACHED, 1, 0.6, 3)


def test_what_it_says_last_counts_even_if_it_has_gone(usual):
    assert run(tells(0.1, 0.9), usual).outcome is Outcome.REACHED


def test_one_that_cannot_win_is_stopped_and_says_why(usual):
    ended = run(f"{tells(0.1, 0.1)}; {WAITS}", usual, Impatient)
    assert (ended.outcome, ended.epochs) == (Outcome.STOPPED_EARLY, 2)
    assert ended.notes == ("it cannot win any more: another batch size is cheaper",)


def test_it_is_not_stopped_for_what_a_short_first_epoch_cost(usual):
    ended = run(f"{tells(0.1)}; sleep 0.5; exit 0", usual, Impatient)
    assert ended.notes == ("ended by itself after 1 of 8 epochs",)


@pytest.mark.parametrize("then", [WAITS, "exit 0"])
def test_all_epochs_without_the_target_have_failed_whoever_ends_it(usual, then):
    ended = run(f"{tells(*[0.1] * JOB.max_epochs)}; {then}", usual)
    assert (ended.outcome, ended.epochs, ended.value, ended.notes) == (Outcome.FAILED, JOB.max_epochs, 0.1, ())


def test_one_that_ends_by_itself_too_early_says_so(usual):
    ended = run(tells(0.1, 0.2), usual)
    assert (ended.outcome, ended.notes) == (Outcome.STOPPED_EARLY, ("ended by itself after 2 of 8 epochs",))


def test_a_crash_at_once_is_hopeless_and_a_later_one_is_not(usual):
    at_once = run("exit 7", usual)
    assert (at_once.outcome, at_once.notes, at_once.exit_code) == (Outcome.FAILED, (CRASHED,), 7)
    assert at_once.hopeless == "the command ended with exit code 7 before its first epoch"
    later = run(f"{tells(0.1)}; exit 7", usual)
    assert (later.outcome, later.notes, later.hopeless) == (Outcome.FAILED, (CRASHED,), None)


def test_want_of_memory_is_known_by_the_last_words_and_only_where_it_failed(usual):
    words = "echo 'CUDA out of memory' >&2"
    assert run(f"{words}; exit 1", usual).outcome is Outcome.OUT_OF_MEMORY
    assert run(f"{words}; {tells(0.6)}", usual).outcome is Outcome.REACHED


def test_one_that_somebody_killed_is_preempted(usual):
    ended = run(f"{tells(0.1)}; kill -9 $$", usual)
    assert (ended.outcome, ended.notes, ended.exit_code) == (Outcome.PREEMPTED, ("somebody killed it",), 137)


def test_a_metric_that_is_never_a_number_has_failed(usual):
    ended = run(f"{tells('nan', 'nan')}", usual)
    assert (ended.outcome, ended.value, ended.notes) == (Outcome.FAILED, None, ("val_acc was no number 2 of 2 times",))


def test_one_that_tells_nothing_is_told_how_to(usual):
    ended = run("echo hello", usual)
    assert (ended.outcome, ended.notes) == (Outcome.FAILED, (CRASHED,))
    assert "add joulewise.metric(epoch=…, val_acc=…) to it, or use --metric-pattern" in ended.hopeless


def test_a_target_that_no_metric_has_is_nobodys_failure(recording):
    with terms(recording, patterns=(r"epoch (?P<epoch>\d+) val_acc=(?P<val_accuracy>\S+)",)) as made:
        ended = run(f"{tells(0.1)}; {WAITS}", made)
    assert (ended.outcome, ended.notes) == (Outcome.PREEMPTED, ("misspelt target",))
    assert "no metric is called 'val_acc', told are: val_accuracy" in ended.hopeless


def test_one_that_does_not_listen_is_killed_and_still_has_reached_its_target(recording):
    with terms(recording, grace_s=0.1) as made:
        ended = run(f"trap '' TERM; {tells(0.6)}; {WAITS}", made)
    assert (ended.outcome, ended.exit_code) == (Outcome.REACHED, 137)
    assert ended.notes == ("killed: it had not ended 0.1 s after it was told to",)


def test_a_command_that_cannot_be_started_is_an_error(usual):
    at = desk()
    with pytest.raises(FileNotFoundError):
        tried(at.ask("r1", PLATFORM), ["/no/such/program"], usual, at)


def test_gpus_are_given_back_before_anything_else_of_the_end(recording, monkeypatch):
    order = []
    for kind, name in ((Tuning, "finish"), (Meter, "end"), (Stop, "tidy"), (Output, "end")):
        call = getattr(kind, name)

        def told(self, *args, call=call, which=f"{kind.__name__}.{name}"):
            order.append(which)
            return call(self, *args)

        monkeypatch.setattr(kind, name, told)
    with terms(recording) as made:
        run(tells(0.6), replace(made, aim=Wanted()))
    assert list(dict.fromkeys(order)) == ["Tuning.finish", "Meter.end", "Stop.tidy", "Output.end"]
