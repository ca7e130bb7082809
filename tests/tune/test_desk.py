"""One recurring job on a journal: handed out once, counted once, whoever else is at it and whoever dies."""

import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from bench.desk import STREAM, filled
from joulewise.core.errors import BadSpec, NotKept
from joulewise.core.event import Asked, Event, Expired, Progressed, Registered, Shifted, Told
from joulewise.core.measurement import Outcome
from joulewise.core.series import EpochCost, Platform, Recurring
from joulewise.store import Database, MemoryJournal, SqliteStore
from joulewise.tune.desk import Desk, Standing
from joulewise.tune.series import SeriesTuner

JOB = Recurring("nightly", (8, 16, 32, 64), 32, 10, "val_acc>=0.84")
PLATFORM = Platform("NVIDIA H200", 1, 700.0)
COST = EpochCost(10.0, 5000.0)


class Wall:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Interrupted(MemoryJournal):
    """A journal at which somebody else gets ahead, just before an append."""

    def __init__(self) -> None:
        super().__init__()
        self.somebody: list = []

    def append(self, event: Event, after: int | None = None) -> int:
        while self.somebody:
            self.somebody.pop()()
        return super().append(event, after)


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture
def journal() -> Interrupted:
    return Interrupted()


@pytest.fixture
def desk(journal, wall) -> Desk:
    made = Desk(journal, wall=wall)
    made.register(JOB)
    return made


@pytest.fixture
def store(tmp_path) -> Iterator[SqliteStore]:
    made = SqliteStore(Database(tmp_path / "jobs.db"))
    yield made
    made.close()


def ask(desk: Desk, recurrence: str = "r0", **more) -> Asked:
    return desk.ask(recurrence, PLATFORM, **more)


def tell(desk: Desk, trial: int, outcome: Outcome = Outcome.REACHED, epochs: int = 4) -> None:
    desk.tell(trial, outcome=outcome, epochs=epochs, duration_s=10.0 * epochs, energy_j=5000.0 * epochs, profile=[COST])


def written(journal: MemoryJournal, kind: type) -> list:
    return [event for _, event in journal.read() if isinstance(event, kind)]


OTHER = Recurring("nightly", (8, 16), 8, 10, "val_acc>=0.84")


def test_a_job_is_registered_once_and_when_a_run_has_counted_never_as_another(desk, journal):
    desk.register(JOB)
    assert len(written(journal, Registered)) == 1
    assert desk.job == JOB
    tell(desk, ask(desk).trial)
    with pytest.raises(BadSpec):
        desk.register(OTHER)
    assert len(written(journal, Registered)) == 1


def test_until_then_another_desk_may_register_it_otherwise_and_this_one_knows(desk, journal):
    other = Desk(journal)
    assert desk.job == other.job == JOB
    other.register(OTHER)
    assert [event.job for event in written(journal, Registered)] == [JOB, OTHER]
    assert desk.job == OTHER
    assert ask(desk).batch_size == 8


def test_a_job_that_nobody_registered_has_no_trials():
    with pytest.raises(BadSpec, match="register it first"):
        ask(Desk(MemoryJournal(), stream="series/nightly"))


def test_trials_are_numbered_and_each_is_another(desk, journal):
    asked = [ask(desk, f"r{number}") for number in range(5)]
    assert [each.trial for each in asked] == [0, 1, 2, 3, 4]
    assert written(journal, Asked) == asked


def test_asking_again_under_the_same_key_gives_the_same_trial_on_any_desk(desk, journal, wall):
    first = ask(desk, key="mine")
    wall.now_s += 5
    assert ask(desk, key="mine") == first
    assert ask(Desk(journal, wall=wall), key="mine") == first
    assert ask(desk, key="another").trial == 1
    assert len(written(journal, Asked)) == 2


def test_who_is_overtaken_reads_and_decides_anew(desk, journal, wall):
    other = Desk(journal, wall=wall)
    journal.somebody.append(lambda: ask(other, "theirs"))
    mine = ask(desk, "mine")
    assert [(each.trial, each.recurrence) for each in written(journal, Asked)] == [(0, "theirs"), (1, "mine")]
    assert mine.trial == 1


def test_of_two_who_ask_under_one_key_at_once_both_get_the_one_trial(desk, journal, wall):
    other = Desk(journal, wall=wall)
    theirs: list[Asked] = []
    journal.somebody.append(lambda: theirs.append(ask(other, key="same")))
    assert ask(desk, key="same") == theirs[0]
    assert len(written(journal, Asked)) == 1


def test_many_at_many_desks_share_no_trial_and_lose_none(desk, journal, wall):
    given: list[int] = []

    def work(name: str) -> None:
        mine = Desk(journal, wall=wall)
        for number in range(6):
            trial = ask(mine, f"{name}-{number}").trial
            given.append(trial)
            tell(mine, trial)

    threads = [threading.Thread(target=work, args=(f"c{number}",)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(given) == list(range(36))
    assert sorted(told.trial for told in written(journal, Told)) == list(range(36))


def test_a_trial_that_reports_is_told_whether_to_go_on(desk):
    trial = ask(desk).trial
    standing = desk.progress(trial, 1, [COST])
    assert standing == Standing(desk.limit(trial, [COST]), True)
    assert desk.progress(trial, standing.most_epochs, [COST]).go_on is False


def test_progress_is_written_when_it_says_something_new_or_half_the_lease_is_over(desk, journal, wall):
    trial = ask(desk, lease_s=100.0).trial
    for later_s, epochs, lines in ((0, 1, 1), (10, 1, 1), (20, 1, 1), (0, 2, 2), (45, 2, 2), (10, 2, 3)):
        wall.now_s += later_s
        desk.progress(trial, epochs, [COST], lease_s=100.0)
        assert len(written(journal, Progressed)) == lines
    desk.progress(trial, 2, [EpochCost(11.0, 5000.0)], lease_s=100.0)
    assert len(written(journal, Progressed)) == 4


def test_a_trial_that_reports_does_not_expire(desk, journal, wall):
    trial = ask(desk, lease_s=100.0).trial
    for _ in range(20):
        wall.now_s += 60
        desk.progress(trial, 1, [COST], lease_s=100.0)
        assert desk.expire() == 0
    assert written(journal, Expired) == []


def test_a_killed_client_frees_its_trial_and_its_size_is_offered_again(desk, journal, wall):
    """Zeus, D2: a killed client's trial stays dispatched for ever, and exploration with it."""
    lost = ask(desk, "killed", lease_s=60.0)
    wall.now_s += 61
    after = [ask(desk, f"r{number}") for number in range(len(JOB.batch_sizes))]
    assert [each.trial for each in written(journal, Expired)] == [lost.trial]
    assert lost.batch_size in [each.batch_size for each in after]


def test_what_is_overdue_is_let_go_of_even_if_nobody_asks(desk, journal, wall):
    trials = [ask(desk, f"r{number}", lease_s=60.0).trial for number in range(3)]
    tell(desk, trials[1])
    wall.now_s += 61
    assert desk.expire() == 2
    assert desk.expire() == 0
    assert [each.trial for each in written(journal, Expired)] == [trials[0], trials[2]]


@pytest.mark.parametrize("outcome", Outcome)
def test_a_result_counts_once_however_often_and_late_it_comes(desk, journal, wall, outcome):
    """Zeus, D3: a report that comes after the stage has changed is rejected and raises inside training."""
    early, late, never = (ask(desk, f"r{number}", lease_s=60.0).trial for number in range(3))
    for _ in range(3):
        tell(desk, early, outcome)
    wall.now_s += 1000
    assert desk.expire() == 2
    for _ in range(3):
        tell(desk, late, outcome)
    # Whatever else has been learnt meanwhile, and by whatever desk it comes.
    for number in range(8):
        tell(desk, ask(desk, f"later{number}").trial)
    for each in (early, late, never):
        tell(Desk(journal, wall=wall), each, Outcome.REACHED, epochs=1)
        desk.progress(each, 3, [COST])
    told = [event for event in written(journal, Told) if event.trial in (early, late, never)]
    assert [(event.trial, event.outcome) for event in told] == [
        (early, outcome),
        (late, outcome),
        (never, Outcome.REACHED),
    ]


def test_a_trial_that_was_never_handed_out_is_refused(desk):
    ask(desk)
    for call in (
        lambda: tell(desk, 1),
        lambda: desk.progress(7, 1),
        lambda: desk.limit(1),
        lambda: desk.limit(-1),
    ):
        with pytest.raises(BadSpec):
            call()
    assert desk.knows(0)
    assert not desk.knows(1)


def test_two_desks_say_the_same_of_what_is_written(desk, journal, wall):
    other = Desk(journal, wall=wall)
    for number in range(12):
        trial = ask(desk if number % 2 else other, f"r{number}").trial
        tell(other, trial, Outcome.REACHED if number % 3 else Outcome.STOPPED_EARLY, epochs=2 + number % 5)
    assert desk.history() == other.history()
    assert desk.beliefs(PLATFORM) == other.beliefs(PLATFORM)
    assert desk.summary(PLATFORM) == other.summary(PLATFORM)
    assert desk.frontier(PLATFORM) == other.frontier(PLATFORM)
    assert desk.last_platform == PLATFORM


def played(store: SqliteStore, wall: Wall, recurrences: int) -> Desk:
    desk = Desk.of(store, "nightly", wall=wall)
    desk.register(JOB)
    for number in range(recurrences):
        wall.now_s += 100
        trial = ask(desk, f"r{number}", key=f"k{number}").trial
        desk.progress(trial, 1, [COST])
        if number % 11:
            tell(desk, trial, Outcome.REACHED if number % 5 else Outcome.STOPPED_EARLY, epochs=3 + number % 4)
    return desk


def test_from_a_snapshot_or_from_nothing_it_is_the_same(store, wall):
    desk = played(store, wall, 200)
    last, _ = store.snapshots().load("series/nightly", SeriesTuner.VERSION)
    assert last > 400
    quick, slow = Desk.of(store, "nightly", wall=wall), Desk(store.journal("series/nightly"), wall=wall)
    for each in (quick, slow):
        assert each.history() == desk.history()
        assert each.beliefs(PLATFORM) == desk.beliefs(PLATFORM)
        assert each.summary(PLATFORM) == desk.summary(PLATFORM)
    assert ask(quick, key="k3") == ask(slow, key="k3")
    following = [ask(each, f"next{each}").batch_size for each in (quick, slow)]
    assert all(size in JOB.batch_sizes for size in following)
    assert [each.knows(201) for each in (quick, slow)] == [True, True]


@pytest.mark.parametrize("state", [{}, {"tuner": 7}, {"tuner": {}, "event": "x", "asked": None}, {"tuner": None}])
def test_a_damaged_snapshot_is_thrown_away(store, wall, state):
    desk = played(store, wall, 3)
    store.snapshots().save("series/nightly", SeriesTuner.VERSION, 2, state)
    assert Desk.of(store, "nightly", wall=wall).history() == desk.history()


def test_a_snapshot_of_another_past_is_thrown_away(store, wall):
    played(store, wall, 200)
    last, state = store.snapshots().load("series/nightly", SeriesTuner.VERSION)
    store.snapshots().save("series/nightly", SeriesTuner.VERSION, last + 1, state)
    fresh = Desk(store.journal("series/nightly"), wall=wall)
    assert Desk.of(store, "nightly", wall=wall).history() == fresh.history()


def test_a_job_that_was_deleted_and_begun_anew_is_followed(store, wall):
    desk = played(store, wall, 5)
    with store.database.writing() as connection:
        connection.execute("DELETE FROM events")
    other = Desk.of(store, "nightly", wall=wall)
    smaller = Recurring("nightly", (8, 16), 8, 5)
    other.register(smaller)
    for number in range(30):
        ask(other, f"r{number}")
    assert ask(desk, "mine").trial == 30
    assert desk.job == smaller
    assert len(desk.history()) == 31


def test_a_damaged_journal_is_said_to_be_so_and_what_is_kept_stays(store, wall):
    desk = played(store, wall, 2)
    with store.database.writing() as connection:
        connection.execute("UPDATE events SET event = '{' WHERE id = 3")
    with pytest.raises(NotKept, match="event 3 of series/nightly"):
        ask(Desk(store.journal("series/nightly"), wall=wall))
    assert ask(desk, "still").trial == 2


def test_events_of_others_in_the_stream_do_no_harm(desk, journal):
    journal.append(Shifted(0.0, "pace", "of something else"))
    assert ask(desk).trial == 0


class Counted:
    """A journal, and how many events were read from it."""

    def __init__(self, journal) -> None:
        self.journal, self.trouble, self.count = journal, None, 0

    def append(self, event: Event, after: int | None = None) -> int:
        return self.journal.append(event, after)

    def read(self, since: int = 0) -> Iterator[tuple[int, Event]]:
        for each in self.journal.read(since):
            self.count += 1
            yield each


def calls_of(what: Callable[[], object]) -> int:
    """How many functions ``what`` calls: a measure of work to which no busy machine adds."""
    count = 0

    def called(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(called)
    try:
        what()
    finally:
        sys.setprofile(None)
    return count


def test_an_ask_is_no_more_work_after_many_runs_than_after_few_even_in_a_new_process(tmp_path):
    """What it takes in time is for ``bench.desk``."""
    calls = []
    for runs in (300, 3_000):
        store = SqliteStore(Database(tmp_path / f"{runs}.db"))
        desk = filled(store, runs)
        calls.append(calls_of(lambda desk=desk: ask(desk, "next")))
        counted = Counted(store.journal(STREAM))
        assert ask(Desk(counted, snapshots=store.snapshots(), stream=STREAM), "of another process").trial == runs + 1
        assert counted.count == 2  # the last that the snapshot knows, and what was asked since
        store.close()
    assert calls[1] < 2 * calls[0]  # more or less by half, as the tuner draws; ten times as many runs went before
