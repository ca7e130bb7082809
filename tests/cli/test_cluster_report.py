import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from joulewise.cluster.scheduler_status import JobStatus, NodeStatus, Status
from joulewise.cluster.state import Prices, Way
from joulewise.core.errors import BadSpec
from joulewise.core.event import Aimed, Event, Limited
from joulewise.core.knob import Setting
from joulewise.core.plain import plain
from joulewise.report import cluster_facts as facts
from joulewise.report.cluster_page import page
from joulewise.report.cluster_words import conclusions, headline
from joulewise.store import open_store
from tests.cli.clusters import called, one_line

BEGUN_S = 1_790_000_000.0
FULL = Way(8, 0.5, 1000.0, Setting(sm_mhz=1410), kind="a100-sxm")
SLOW = Way(8, 0.625, 750.0, Setting(sm_mhz=1000), kind="a100-sxm")
CUT_S, END_S = 60.0, 120.0


def job(time_s: float, *, name: str = "night", slower: float = 1.0) -> JobStatus:
    """Steps and joules of a job that does as it promised, or is so many times slower than that."""
    way = FULL if time_s < CUT_S else SLOW
    first_s, second_s = min(time_s, CUT_S), max(0.0, time_s - CUT_S)
    done = first_s / (slower * FULL.unit_s) + second_s / (slower * SLOW.unit_s)
    gpu_j = first_s * FULL.power_w + second_s * SLOW.power_w
    over = time_s >= END_S
    return JobStatus(
        name,
        "7",
        "ended" if over else "running",
        "",
        0 if over else 8,
        {} if over else {"n1": 8},
        Setting() if over else way.setting,
        way.power_w,
        float(int(done)),
        200.0,
        energy_j=1.2 * gpu_j,
        started_s=BEGUN_S,
        ended_s=BEGUN_S + END_S if over else None,
        starts=1,
        gpus_asked=8,
        elastic=True,
        gpu_j=gpu_j,
    )


def status(time_s: float, **how: object) -> Status:
    capped = time_s >= CUT_S
    seen = job(time_s, **how)  # type: ignore[arg-type]
    power_w = 400.0 if seen.ended_s else 400.0 + seen.power_w
    node = NodeStatus("n1", "up", "a100-sxm", 8, 8, 0, power_w, power_w, power_w, None, None, 0.1)
    prices = Prices({"a100-sxm": 0.0}, 0.0, 0.5e-3 if capped else 0.0)
    cap_w = 2000.0 if capped else None
    shown = (power_w, cap_w, cap_w, None, "operator", None if cap_w is None else power_w <= cap_w)
    return Status(
        BEGUN_S + time_s,
        1,
        power_w,
        *shown,
        1e4 * time_s,
        0.0,
        None,
        86400.0,
        0.0,
        prices,
        None,
        3,
        BEGUN_S,
        (node,),
        (seen,),
    )


def watched(**how: object) -> list[Status]:
    return [status(0.5 * number, **how) for number in range(int(2 * END_S) + 4)]


def aimed(time_s: float, what: str, way: Way, reason: str = "") -> Aimed:
    return Aimed(BEGUN_S + time_s, 1, "night", what, {"way": plain(way), "place": {"n1": 8}}, reason)


EVENTS: list[Event] = [
    aimed(0.0, "start", FULL),
    Limited(BEGUN_S + CUT_S, "cap", {"cap_w": 2000.0, "source": "operator"}),
    aimed(CUT_S, "retune", SLOW, "the cap fell to 2,000 W"),
]


def metered(late_s: float = 0.4) -> facts.Series:
    """A meter that sees the cut ``late_s`` after it was said."""
    rows = []
    for number in range(int(10 * END_S)):
        time_s = 0.1 * number
        rows.append((BEGUN_S + time_s, 2400.0 if time_s < CUT_S + late_s else 1600.0))
    return rows


def test_a_promise_that_was_kept_is_measured_as_such():
    story = facts.told(watched(), EVENTS, None, {})
    before, under = story.of("night")
    assert (before.promised, under.promised) == (FULL, SLOW)
    assert (before.capped, under.capped) == (False, True)
    for stretch, way in ((before, FULL), (under, SLOW)):
        assert stretch.unit_s.value == pytest.approx(way.unit_s, rel=0.01)
        assert stretch.unit_j.value == pytest.approx(way.unit_j, rel=0.01)
        assert stretch.unit_s.error < 0.01 * way.unit_s
    assert facts.reference(story.of("night")) is before


def test_a_promise_that_was_not_kept_shows_by_how_much():
    story = facts.told(watched(slower=1.25), EVENTS, None, {})
    assert story.of("night")[0].unit_s.value == pytest.approx(1.25 * FULL.unit_s, rel=0.01)
    assert "Without a cap, time and energy of a step differed by at most 25 % from what was promised" in " ".join(
        conclusions(story)
    )


def test_the_time_to_compliance_is_the_meter_s_and_a_mean_over_a_second():
    (cut,) = facts.told(watched(), EVENTS, metered(), {}).cuts
    assert cut.was_w == pytest.approx(2400.0)
    # 0.4 s late; a mean over a second is below 2 kW when half of it is.
    assert cut.power.complied_s == pytest.approx(0.9, abs=0.15)
    assert cut.power.after_j == 0.0
    (late,) = facts.told(watched(), EVENTS, metered(5.0), {}).cuts
    assert late.power.complied_s == pytest.approx(5.5, abs=0.15)
    assert late.power.overshoot_j > 1500.0


def test_a_cap_that_is_never_kept_is_no_success():
    story = facts.told(watched(), EVENTS, metered(100.0), {})
    assert story.cuts[0].power.complied_s is None
    assert "not always kept" in headline(story)
    assert "do not promise it" in " ".join(conclusions(story))


def test_who_was_resized_for_a_cut_is_named():
    story = facts.told(watched(), EVENTS, metered(), {})
    assert "A cut of 17 % was kept after 0.9 s, by clocks alone." in conclusions(story)
    resized = [*EVENTS, aimed(CUT_S + 2.0, "resize", replace(SLOW, gpus=4))]
    story = facts.told(watched(), resized, metered(), {})
    assert "A cut of 17 % was kept after 0.9 s; then night was resized." in conclusions(story)


def test_a_cap_that_rises_is_no_cut():
    raised = [*EVENTS, Limited(BEGUN_S + 90.0, "cap", {"cap_w": 5000.0})]
    assert len(facts.told(watched(), raised, metered(), {}).cuts) == 1


def test_a_cut_after_a_lower_cap_that_ended_by_itself_is_a_cut_and_one_above_a_feeds_is_none():
    ended = Limited(BEGUN_S + 10.0, "cap", {"cap_w": 1000.0, "source": "operator", "until_s": BEGUN_S + 30.0})
    cut = facts.told(watched(), [ended, *EVENTS], metered(), {}).cuts[-1]
    assert (cut.time_s, cut.cap_w, cut.was_w) == (BEGUN_S + CUT_S, 2000.0, pytest.approx(2400.0))
    fed = Limited(BEGUN_S + 5.0, "cap", {"cap_w": 1500.0, "source": "feed"})
    assert [each.cap_w for each in facts.told(watched(), [fed, *EVENTS], metered(), {}).cuts] == [1500.0]


def test_a_word_that_counts_from_later_on_is_a_cut_when_it_does():
    later = Limited(BEGUN_S + 20.0, "cap", {"cap_w": 2000.0, "source": "operator", "from_s": BEGUN_S + CUT_S})
    (cut,) = facts.told(watched(), [EVENTS[0], later, EVENTS[2]], metered(), {}).cuts
    assert cut.time_s == BEGUN_S + CUT_S
    assert cut.power.complied_s == pytest.approx(0.9, abs=0.15)


def test_the_headline_says_cut_compliance_end_and_saving():
    said = headline(facts.told(watched(), EVENTS, metered(), {}))
    assert said == (
        "The cluster's power was cut by up to 17 %, kept within 0.9 s; the job ended as it should, "
        "and night took 25 % fewer joules a step at 1000 MHz"
    )


def test_a_job_without_steps_is_shown_and_not_judged():
    silent = [replace(each, jobs=tuple(replace(one, done=0.0) for one in each.jobs)) for each in watched()]
    story = facts.told(silent, EVENTS, None, {})
    assert [stretch.unit_s for stretch in story.of("night")] == [None, None]
    assert "No job ran long enough" in page(story)


def test_the_page_holds_everything_and_asks_for_nothing():
    named = [
        Status(**{**_fields(each), "jobs": tuple(replace(one, name="<b>x</b>") for one in each.jobs)})
        for each in watched()
    ]
    events = [replace(event, name="<b>x</b>") if isinstance(event, Aimed) else event for event in EVENTS]
    made = page(facts.told(named, events, metered(), {"<b>x</b>": 81234.5}))
    assert "<b>x" not in made
    assert "&lt;b&gt;x" in made
    assert "81.23 kJ" in made
    assert not re.search(r"(src|href)=|https?://", made)
    for title in ("Power of the whole cluster", "Promised and measured", "What to conclude", "what is believed"):
        assert title in made
    assert "nan" not in made.lower()


def _fields(each: Status) -> dict[str, object]:
    return {name: getattr(each, name) for name in Status.__dataclass_fields__}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("JOULEWISE_HOME", str(tmp_path))
    (tmp_path / "watched.jsonl").write_text("".join(json.dumps(plain(each)) + "\n" for each in watched()))
    return tmp_path


def keep(cluster: str) -> None:
    store = open_store(None)
    for event in EVENTS:
        store.journal(f"cluster/{cluster}").append(event)
    store.close()


def test_the_verb_joins_files_and_journal_to_a_page(home, capsys):
    keep("jw")
    (home / "meter.csv").write_text("time_s,power_w\n" + "".join(f"{t:.1f},{w}\n" for t, w in metered()))
    (home / "sacct.txt").write_text("night|7|COMPLETED|joulewise energy_j=81234.5\nother|8|COMPLETED|\n")
    flags = ("--meter", str(home / "meter.csv"), "--accounts", str(home / "sacct.txt"), "--out", str(home / "p.html"))
    assert called("report", str(home / "watched.jsonl"), *flags) == 0
    assert capsys.readouterr().out.startswith("The cluster's power was cut by up to 17 %, kept within 0.9 s")
    assert "81.23 kJ" in (home / "p.html").read_text()


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"watched.jsonl": "no json\n"}, "line 1 is no status of a cluster"),
        ({"watched.jsonl": ""}, "0 lines of status tell no story"),
        ({"meter.csv": "a,b\n1,2\n"}, "it has the columns time_s"),
        ({"meter.csv": "time_s,power_w\n1,2\n2,3\n"}, "no values of the time that was watched"),
        ({"sacct.txt": "night|joulewise energy_j=much\n"}, "'energy_j=much' of job night is no energy"),
    ],
)
def test_a_file_that_is_something_else_is_one_line(home, files, says, capsys):
    keep("jw")
    (home / "meter.csv").write_text("time_s,power_w\n" + "".join(f"{t:.1f},{w}\n" for t, w in metered()))
    (home / "sacct.txt").write_text("")
    for name, text in files.items():
        (home / name).write_text(text)
    flags = ("--meter", str(home / "meter.csv"), "--accounts", str(home / "sacct.txt"), "--out", str(home / "p.html"))
    assert called("report", str(home / "watched.jsonl"), *flags) == 2
    assert says in one_line(capsys)
    assert not (home / "p.html").exists()


def test_whose_journal_it_is_must_be_clear(home, capsys):
    command = ("report", str(home / "watched.jsonl"), "--out", str(home / "p.html"))
    assert called(*command) == 2
    assert "no journal of a cluster" in one_line(capsys)
    keep("one")
    keep("two")
    assert called(*command) == 2
    assert "name one: --cluster two" in one_line(capsys)
    assert called(*command, "--cluster", "three") == 2
    assert "no journal of a cluster 'three'" in one_line(capsys)
    assert called(*command, "--cluster", "one") == 0


def test_a_page_that_cannot_be_written_is_one_line(home, capsys):
    keep("jw")
    assert called("report", str(home / "watched.jsonl"), "--out", str(home / "nowhere" / "p.html")) == 2
    assert "cannot be written" in one_line(capsys)


def test_nothing_watched_is_no_story():
    with pytest.raises(BadSpec, match="tell no story"):
        facts.told([status(0.0)], EVENTS, None, {})


def test_as_json_it_has_every_figure_of_the_page_and_writes_none_unless_asked(home, capsys):
    keep("jw")
    watched_file = str(home / "watched.jsonl")
    assert called("report", watched_file, "--json") == 0
    shown = capsys.readouterr()
    told = json.loads(shown.out)
    assert shown.err == ""
    assert told["headline"].startswith("The cluster's power was cut by up to 17 %")
    assert told["cuts"][0]["cap_w"] == 2000.0
    assert [each["job"] for each in told["stretches"]] == ["night", "night"]
    assert told["jobs"][0]["name"] == "night"
    assert called("report", watched_file, "--json", "--out", str(home / "p.html")) == 0
    assert (home / "p.html").exists()


def test_without_a_page_and_without_json_nothing_is_asked_for(home, capsys):
    assert called("report", str(home / "watched.jsonl")) == 2
    assert "name a page with --out FILE.html, or say --json" in one_line(capsys)
