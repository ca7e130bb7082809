"""One recurrence: trial after trial until one gets there, and when to give up. Real commands."""

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.cli.recur_loop import MOST_TRIALS, Recurrence, Trial, in_short, platform_of, recurred
from joulewise.cli.recur_trial import Ended, Terms
from joulewise.core.event import Asked
from joulewise.core.measurement import Outcome
from joulewise.core.series import Purpose
from joulewise.tune.series import CRASHED
from joulewise.tune.steady import Steady
from tests.cli.shell_trials import JOB, PLATFORM, desk, tells, terms

_NUMBERS = itertools.count()


@pytest.fixture
def usual(recording) -> Iterator[Terms]:
    with terms(recording) as made:
        yield made


def run(script: str, terms: Terms, at: Steady, said: list[str] | None = None) -> Recurrence:
    """``script`` has the batch size as $0."""
    say = said.append if said is not None else lambda _: None
    return recurred(f"r{next(_NUMBERS)}", ["sh", "-c", script, "{batch_size}"], None, terms, at, PLATFORM, say)


def sizes(done: Recurrence) -> list[int]:
    return [trial.asked.batch_size for trial in done.trials]


def test_it_is_over_with_the_first_trial_that_gets_there(usual):
    at = desk()
    done = run(tells(0.1, 0.6), usual, at)
    assert (sizes(done), done.error, done.exit_code, done.unkept) == ([16], None, 0, None)
    assert done.reached is done.trials[0]
    assert done.trials[0].command == ("sh", "-c", tells(0.1, 0.6), "16")
    assert [trial.told.outcome for trial in at.history()] == [Outcome.REACHED]


def test_after_a_trial_that_did_not_it_says_so_and_goes_on(usual):
    said: list[str] = []
    done = run(f"test $0 -lt 16 || {{ echo CUDA out of memory; exit 1; }}; {tells(0.6)}", usual, desk(), said)
    assert (sizes(done), done.exit_code) == ([16, 8], 0)
    assert said == ["nightly: batch size 16 ran out of memory after 0 epochs; another trial follows"]
    assert done.reached is done.trials[1]


def test_it_does_not_go_on_for_ever(usual):
    at, said = desk(), []
    assert run(tells(0.6), usual, at).exit_code == 0
    done = run(tells(*[0.1] * 8), usual, at, said)
    assert len(done.trials) == len(said) + 1 == MOST_TRIALS
    assert (done.error, done.exit_code) == ("the target val_acc>=0.5 was not reached in 5 trials", 1)
    assert done.reached is None


def test_a_job_that_crashes_at_every_size_is_broken_and_that_is_said_every_night_until_it_is_mended(usual):
    at = desk()
    for _ in range(3):
        done = run(f"{tells(0.1)}; exit 7", usual, at)
        assert (len(done.trials), len(set(sizes(done))), done.exit_code) == (3, 3, 7)
        assert sizes(done)[0] == 16
        assert "the last 3 runs of 'nightly' crashed, at batch sizes 16, " in done.error
        assert "the job itself seems broken" in done.error
    assert len(at.history()) == 9
    mended = run(tells(0.6), usual, at)
    assert (sizes(mended), mended.exit_code) == ([16], 0)


def test_what_fits_nowhere_is_said_with_the_commands_exit_code(usual):
    done = run("echo CUDA out of memory; exit 3", usual, desk())
    assert (sizes(done), done.exit_code) == ([16, 8], 3)
    assert "no batch size of 'nightly' can be run" in done.error


def test_what_is_hopeless_is_not_tried_again(usual):
    done = run("exit 7", usual, desk())
    assert (len(done.trials), done.exit_code) == (1, 7)
    silent = run("exit 0", usual, desk())
    assert (len(silent.trials), silent.exit_code) == (1, 2)


def test_a_default_that_does_not_converge_ends_it_as_long_as_nothing_ever_has(recording):
    alone = replace(JOB, batch_sizes=(16,), default=16)
    at, never = desk(job=alone), tells(*[0.1] * 8)
    with terms(recording, alone) as made:
        first = run(never, made, at)
        lucky = run(tells(0.6), made, at)
        unlucky = run(never, made, at)
    assert (len(first.trials), first.exit_code) == (1, 1)
    assert "val_acc came to 0.1 at best in 8 epochs at the default batch size 16" in first.error
    assert (len(lucky.trials), lucky.exit_code) == (1, 0)
    assert (len(unlucky.trials), unlucky.exit_code) == (MOST_TRIALS, 1)


def test_a_killed_trial_ends_it_with_the_exit_code_of_the_command(usual):
    done = run(f"{tells(0.1)}; kill -9 $$", usual, desk())
    assert (len(done.trials), done.exit_code, done.error) == (1, 137, "it was stopped before it had reached its target")


def test_a_command_that_cannot_be_started_hands_its_trial_back(usual):
    at = desk()
    with pytest.raises(FileNotFoundError):
        recurred("r1", ["/no/such/program", "{batch_size}"], None, usual, at, PLATFORM, lambda _: None)
    (trial,) = at.history()
    assert (trial.told.outcome, trial.told.notes, trial.told.energy_j) == (Outcome.PREEMPTED, ("never ran",), 0.0)


# Without running anything.


def ended(outcome: Outcome, epochs: int = 3, *, notes: tuple[str, ...] = (), energy_j: float | None = 10.0) -> Ended:
    return Ended(outcome, epochs, 2.0, energy_j, None, 0.0, 0.0, (), notes, 7, None)


ASKED = Asked(0.0, 0, "r1", 64, PLATFORM, Purpose.EXPLORE, "", 600.0)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (ended(Outcome.STOPPED_EARLY, 1), "batch size 64 stopped after 1 epoch"),
        (ended(Outcome.OUT_OF_MEMORY, 0), "batch size 64 ran out of memory after 0 epochs"),
        (ended(Outcome.FAILED), "batch size 64 failed after 3 epochs"),
        (ended(Outcome.FAILED, notes=(CRASHED,)), "batch size 64 crashed with exit code 7 after 3 epochs"),
        (ended(Outcome.STOPPED_EARLY, notes=("too dear",)), "batch size 64 stopped after 3 epochs (too dear)"),
    ],
)
def test_a_trial_in_short_is_what_when_and_why(how, words):
    assert in_short(ASKED, how) == words


@given(st.sampled_from(Outcome), st.integers(0, 100))
def test_every_outcome_has_words(outcome, epochs):
    assert in_short(ASKED, ended(outcome, epochs)).startswith("batch size 64 ")


@given(st.lists(st.floats(0, 1e9) | st.none(), max_size=5))
def test_what_it_took_is_the_sum_of_what_could_be_read(energies):
    done = Recurrence("r1", [Trial(ASKED, (), ended(Outcome.FAILED, energy_j=each)) for each in energies])
    assert done.energy_j == pytest.approx(sum(each for each in energies if each is not None))
    assert done.duration_s == 2.0 * len(energies)


def test_the_platform_is_the_names_of_its_gpus_how_many_and_their_highest_limits(idle_gpu):
    one, two = platform_of([idle_gpu]), platform_of([idle_gpu, idle_gpu])
    assert (one.key, two.key) == ("1x NVIDIA H200", "2x NVIDIA H200")
    assert two.max_power_w == 2 * one.max_power_w == 2 * idle_gpu.info.space.knobs["power_limit_w"].high
