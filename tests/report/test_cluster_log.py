import pytest

from joulewise.core.event import Limited, Ordered, Turned
from joulewise.core.plain import plain
from joulewise.report import cluster_log
from joulewise.report.cluster_log import ClusterLog
from joulewise.store import MemoryJournal
from tests.serve.face_toys import T0, cluster_events


def followed(events) -> tuple[MemoryJournal, ClusterLog]:
    journal = MemoryJournal()
    for event in events:
        journal.append(event)
    log = ClusterLog("hall", journal)
    log.refresh()
    return journal, log


@pytest.fixture
def log() -> ClusterLog:
    return followed(cluster_events())[1]


def test_power_between_two_counts_is_exact_and_the_cap_is_where_it_fell(log):
    power = log.shown().power
    at = dict(zip(power.time_s, zip(power.power_w, power.cap_w, strict=True), strict=True))
    assert at[T0 + 120] == (pytest.approx(4000.0), None)
    assert at[T0 + 300] == (pytest.approx(4000.0), 3000.0)
    assert at[T0 + 600] == (pytest.approx(2500.0), 3000.0)
    assert at[T0][0] is None  # nothing was counted before


def test_jobs_have_the_spans_that_they_ran_in(log):
    jobs = {job.name: job for job in log.shown().jobs}
    one = jobs["one"]
    assert [(span.from_s, span.to_s, span.gpus) for span in one.spans] == [
        (T0 + 5, T0 + 310, 8),
        (T0 + 310, None, 4),
    ]
    assert one.spans[1].words == "1200 MHz"
    assert (one.state, one.energy_j, one.done, one.starts) == ("running", 1e6, 400.0, 2)
    assert (jobs["two"].state, jobs["two"].spans) == ("waiting", ())


def test_why_is_what_was_written_down_with_the_decision(log):
    assert log.why("one") == "one was resized (4 GPUs on n1, 1200 MHz): the cap fell"
    assert log.why("two").startswith("two waits for ")
    assert log.why("three") is None


def test_a_node_whose_meter_stands_still_is_unknown_and_not_zero(log):
    nodes = {node.name: node for node in log.shown().nodes}
    assert nodes["n1"].power_w == pytest.approx(2500.0)
    assert nodes["n1"].used_gpus == 4
    assert nodes["n2"].power_w is None


def test_the_budget_and_the_brief(log):
    shown, brief = log.shown(), log.brief()
    assert (shown.budget.energy_j, shown.budget.period_s) == (3.6e9, 86_400.0)
    assert (brief.running, brief.waiting, brief.ended) == (1, 1, 0)
    assert brief.power_w == pytest.approx(2500.0)
    plain(shown)


def test_what_is_written_later_is_taken_in_and_an_end_closes_the_span(log):
    journal, log = followed(cluster_events())
    journal.append(Turned(T0 + 700, "one", "ended", {"ended_s": T0 + 690, "exit_code": 0}))
    log.refresh()
    (one,) = [job for job in log.shown().jobs if job.name == "one"]
    assert (one.spans[-1].to_s, one.state) == (T0 + 690, "ended")
    assert log.why("one") == "one is over: ended."


def test_a_name_that_is_used_again_begins_anew():
    journal, log = followed(cluster_events())
    journal.append(Turned(T0 + 700, "one", "ended", {"ended_s": T0 + 690}))
    order = next(event for event in cluster_events() if isinstance(event, Ordered) and event.name == "one")
    journal.append(Ordered(T0 + 800, "one", {**order.facts, "submitted_s": T0 + 800, "id": "again"}))
    log.refresh()
    (one,) = [job for job in log.shown().jobs if job.name == "one"]
    assert (one.spans, one.state) == ((), "waiting")


def test_memory_is_bounded_and_joules_stay_exact():
    many = 5 * cluster_log._MOST_COUNTS
    events = [Turned(T0 + 60 * n, "", "measured", {"shown_j": 60.0 * 1000 * n, "meters_j": {}}) for n in range(many)]
    events += [
        Limited(T0 + 60 * n + 1, "cap", {"source": "operator", "cap_w": 1e3 + n, "from_s": T0 + 60 * n + 1})
        for n in range(0, many, 2)
    ]
    _, log = followed(sorted(events, key=lambda event: event.time_s))
    power = log.shown().power
    assert len(power.time_s) <= cluster_log._MOST_COUNTS + cluster_log._MOST_CAPS
    assert {round(each) for each in power.power_w if each is not None} == {1000}
    assert power.time_s[-1] >= T0 + 60 * (many - 2)


def test_a_damaged_event_is_a_trouble_and_not_a_fault():
    class Damaged(MemoryJournal):
        def read(self, since=0):
            from joulewise.core.errors import BadSpec

            yield from list(super().read(since))[:5]
            raise BadSpec("event 6 is damaged")

    journal = Damaged()
    for event in cluster_events():
        journal.append(event)
    log = ClusterLog("hall", journal)
    log.refresh()
    assert log.shown().troubles == ("event 6 is damaged",)


def test_it_never_writes(log):
    from joulewise.core.errors import BadSpec

    with pytest.raises(BadSpec, match="only read here"):
        log._told.append(cluster_events()[0])
