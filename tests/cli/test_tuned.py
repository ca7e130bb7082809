import json

from joulewise.cli.tuned import TuneResult, as_json, in_short, trouble, why
from joulewise.core.block import Role
from joulewise.core.event import Finished, Shifted
from joulewise.core.knob import DEFAULT, Setting
from joulewise.core.units import format_duration
from joulewise.device.lease import Ending, Restored
from joulewise.report.claim import Claim
from joulewise.report.story import Story
from joulewise.tune.status import Advice
from tests.cli import made_up

STORY = Story.of(made_up.run(kwh_price=0.3, gpu_hour_price=3.0))
NOTHING = Story.of(())


def result(story=STORY, **fields):
    return TuneResult("run-1", story, Claim.of(story), "least energy, at most 2.0 % slower", **fields)


def test_the_saving_comes_first_then_what_was_done_and_how_to_check_it():
    done = result(report="r.html")
    assert done.headline.startswith("saved ")
    lines = why(done)
    judged = format_duration(done.claim.judged_s)
    assert lines[0] == (
        "least energy, at most 2.0 % slower; ± is half of a 95 % interval, against the same job with nothing set, "
        f"in the {judged} that were judged, probing included"
    )
    assert sum("95 %" in line for line in lines) == 1
    assert any("held SM clock at most 1500 MHz for 10 min" in line for line in lines)
    assert any(line.startswith("net: ") for line in lines)
    assert lines[-1] == "run run-1; 'joulewise verify r.html' recomputes it"
    assert lines[-2].startswith(f"seal {done.story.seal}: note it down")


def test_the_run_in_short_is_short():
    assert in_short(STORY)[0] == "3 settings tried"
    assert in_short(STORY)[-1].startswith("the job changed at 5 min ")
    assert sum("the job changed" in line for line in in_short(STORY)) == 1
    assert in_short(STORY)[-1].endswith(": steps are 2 % slower <than> before")
    assert len(in_short(STORY)) == 3
    assert in_short(NOTHING) == []


def test_a_run_that_was_not_tuned_says_why_and_nothing_more():
    untuned = result(NOTHING, untuned="the command ended without having used a GPU")
    assert untuned.headline == "not tuned: the command ended without having used a GPU"
    assert why(untuned) == []


def test_advice_says_what_is_expected_and_that_nothing_was_set():
    advice = Advice(Setting(sm_mhz=1500), "the law", 0.008, 0.002, -0.081, 0.01)
    advised = result(NOTHING, advice=advice, untuned="no rights")
    assert advised.headline == (
        "would set SM clock at most 1500 MHz: −8.1 % ± 2.0 % energy, +0.8 % ± 0.4 % time expected"
    )
    assert why(advised)[-1] == "not tuned: no rights"
    assert as_json(advised)["advice"]["says"] == advised.headline
    assert as_json(advised)["claim"] is None
    assert not [line for line in why(advised) if "verify" in line]
    alone = result(NOTHING, advice=Advice(Setting(), "nothing pays", 0.0, 0.0, 0.0, 0.0))
    assert alone.headline == "would set nothing: nothing pays"


def test_what_did_not_come_back_must_not_be_overlooked():
    back = Restored("GPU-1", "sm_mhz", Ending.FAILED, None, 1500.0, None, "the driver hangs")
    assert trouble(result(notes=("this run is not kept",), restored=(back,))) == [
        "this run is not kept",
        "SM clock at most 1500 MHz, NOT restored yet: the driver hangs",
    ]


def test_the_json_has_it_all_in_plain_values():
    answer = json.loads(json.dumps(as_json(result()), allow_nan=False))
    assert answer["held"] == {"sm_mhz": 1500}
    assert answer["claim"]["energy_change"] < 0
    assert [each["what"] for each in answer["changes"]] == ["baseline", "probe", "probe", "verify", "hold", "pace"]
    advice = Advice(Setting(sm_mhz=1500), "the law", 0.008, 0.002, -0.081, 0.01)
    assert as_json(result(NOTHING, advice=advice))["advice"]["setting"] == {"sm_mhz": 1500}


def test_what_it_is_worth_is_in_the_json_with_its_interval():
    found = as_json(result())["worth"]
    assert set(found) == {"node_j", "longer_s", "electricity", "gpu_time", "net"}
    assert found["net"]["half"] > 0
    assert as_json(result(Story.of(made_up.run())))["worth"] is None
    assert as_json(result(Story.of(made_up.run(hold=0, kwh_price=0.3))))["worth"] is None


def test_a_run_that_is_not_kept_promises_no_verification():
    lines = why(result(kept=False, report="r.html"))
    assert not [line for line in lines if "verify" in line]
    assert as_json(result(kept=False))["kept"] is False


def test_idle_gaps_and_a_loss_have_lines_of_their_own():
    events = made_up.run(hold=60)
    shifts = [Shifted(1200.0, "idle", "idle for 0.6 s"), Shifted(1201.0, "awake", "awake")]
    lost = Shifted(1210.0, "lost", "nothing is tuned any more: the lease has ended")
    lines = in_short(Story.of([*events[:-2], *shifts, lost, *events[-2:]]))
    assert "clocked down while idle, 1 time" in lines
    assert lines[-1] == "tuning stopped at 3 min 30 s: the lease has ended"
    assert sum("the job changed" in line for line in lines) == 1


def test_nothing_is_said_twice():
    lost = Shifted(1001.0, "lost", "nothing is tuned: GPU-7 is in the hands of pid 6 (joulewise)")
    story = Story.of([made_up.run()[0], lost, Finished(1100.0, "stopped", {})])
    alone = result(story, notes=("GPU-7 is in the hands of pid 6 (joulewise)",))
    said = "\n".join((alone.headline, *why(alone), *trouble(alone)))
    assert said.count("in the hands of") == 1
    assert as_json(alone)["untuned"] == "GPU-7 is in the hands of pid 6 (joulewise)"


def test_where_nothing_is_claimed_nothing_is_to_be_verified():
    lines = why(result(Story.of(made_up.run(hold=0))))
    assert lines[-1] == "run run-1; 'joulewise history run-1' tells it"


def test_why_a_job_was_left_alone_is_said_in_the_headline_only():
    made = made_up.Made()
    made.block(DEFAULT, Role.BASELINE, "the job as it runs by itself")
    reason = "left alone: unit time errs by 4.9% over 12 s, too coarse for the bound"
    made.block(DEFAULT, Role.HOLD, reason, says=reason)
    alone = result(Story.of([made_up.run()[0], *made.events, Finished(made.now_s, "stopped", {})]))
    assert alone.headline == "not tuned: its pace is too unsteady: 4.9 % over 12 s, bound 2 %"
    assert "\n".join(why(alone)).count("unsteady") == 0
