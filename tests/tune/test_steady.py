"""Inside a training run nothing that goes wrong at the desk is raised, and no result is lost."""

import pytest

from joulewise.core.errors import BadSpec, NotKept
from joulewise.core.event import Event, Told
from joulewise.core.measurement import Outcome
from joulewise.core.series import EpochCost, Platform, Recurring
from joulewise.store import MemoryJournal
from joulewise.tune.desk import Desk, SeriesDesk, Standing
from joulewise.tune.steady import Steady

JOB = Recurring("nightly", (8, 16, 32, 64), 32, 10)
PLATFORM = Platform("NVIDIA H200", 1, 700.0)
COST = EpochCost(10.0, 5000.0)


class Full(MemoryJournal):
    """A journal on a disk that is full at times."""

    full = False

    def append(self, event: Event, after: int | None = None) -> int:
        if self.full:
            raise NotKept("the disk is full; make room")
        return super().append(event, after)


@pytest.fixture
def journal() -> Full:
    return Full()


@pytest.fixture
def desk(journal) -> Steady:
    made = Steady(Desk(journal))
    made.register(JOB)
    return made


def tell(desk: SeriesDesk, trial: int, epochs: int = 4) -> None:
    desk.tell(trial, outcome=Outcome.REACHED, epochs=epochs, duration_s=40.0, energy_j=2e4, profile=[COST])


def told(journal: MemoryJournal) -> list[int]:
    return [event.trial for _, event in journal.read() if isinstance(event, Told)]


def test_while_all_is_well_it_is_as_the_desk_itself(desk, journal):
    plain = Desk(journal)
    asked = desk.ask("r0", PLATFORM, "me", "key")
    assert plain.ask("r0", PLATFORM, "me", "key") == asked
    assert desk.progress(asked.trial, 1, [COST]) == plain.progress(asked.trial, 1, [COST])
    assert desk.limit(asked.trial, [COST]) == plain.limit(asked.trial, [COST])
    tell(desk, asked.trial)
    assert (told(journal), desk.trouble) == ([asked.trial], None)
    assert desk.history() == plain.history()
    assert desk.beliefs(PLATFORM) == plain.beliefs(PLATFORM)
    assert desk.summary(PLATFORM) == plain.summary(PLATFORM)
    assert desk.frontier(PLATFORM) == plain.frontier(PLATFORM)


def test_what_cannot_be_said_is_trouble_and_the_last_limit_stands(desk, journal):
    trial = desk.ask("r0", PLATFORM).trial
    most = desk.progress(trial, 1, [COST]).most_epochs
    journal.full = True
    assert desk.progress(trial, 2, [COST]) == Standing(most, True)
    assert desk.trouble == "the disk is full; make room"
    assert desk.progress(trial, most, [COST]) == Standing(most, False)
    journal.full = False
    desk.progress(trial, 3, [COST])
    assert desk.trouble is None


def test_without_a_limit_the_jobs_own_stands(desk):
    assert desk.progress(7, 1) == Standing(JOB.max_epochs, True)
    assert desk.limit(7) == JOB.max_epochs
    assert Steady(Desk(MemoryJournal())).progress(7, 10**6).go_on


def test_results_are_kept_and_handed_in_in_order_before_the_next_ask(desk, journal):
    trials = [desk.ask(f"r{number}", PLATFORM).trial for number in range(3)]
    journal.full = True
    for trial in trials:
        tell(desk, trial)
    assert desk.trouble == "the disk is full; make room (3 results wait)"
    assert not desk.flush()
    with pytest.raises(NotKept):
        desk.ask("next", PLATFORM)
    assert told(journal) == []
    journal.full = False
    desk.ask("next", PLATFORM)
    assert (told(journal), desk.trouble) == (trials, None)


def test_what_is_refused_for_good_does_not_stand_in_the_way(desk, journal):
    trial = desk.ask("r0", PLATFORM).trial
    tell(desk, 99)
    assert desk.trouble
    tell(desk, trial)
    assert (told(journal), desk.trouble) == ([trial], None)


def test_what_is_asked_before_anything_runs_is_refused_aloud(desk):
    tell(desk, desk.ask("r0", PLATFORM).trial)
    with pytest.raises(BadSpec):
        desk.register(Recurring("nightly", (8,), 8, 1))
    with pytest.raises(BadSpec):
        Steady(Desk(MemoryJournal())).ask("r0", PLATFORM)


def test_whose_job_was_replaced_since_it_was_registered_gets_no_trial_of_the_other(desk, journal):
    Desk(journal).register(Recurring("nightly", (8,), 8, 1))
    with pytest.raises(BadSpec, match="known with the batch sizes 8, not "):
        desk.ask("r0", PLATFORM)
    (trial,) = desk.history()
    assert (trial.told.outcome, trial.told.notes) == (Outcome.PREEMPTED, ("never ran",))
