import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.core.errors import BadSpec
from joulewise.core.knob import KNOBS, Setting
from joulewise.device.lease import Ending, Restored
from joulewise.report.knobs import brief, came_back, chosen, restored_lines, setting, shown


def test_flags_repeat_and_take_commas():
    wanted = Setting(sm_mhz=1200, memory_mhz=2619, power_limit_w=300)
    assert setting(["power_limit_w=300", "sm_mhz=1200,memory_mhz=2619"]) == wanted
    assert setting([" sm_mhz = 1200 , memory_mhz=2619", "power_limit_w=300.0"]) == wanted
    assert setting([]) == Setting()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["300"], "--set '300' is no KNOB=VALUE; write '--set power_limit_w=300'"),
        ([""], "--set '' is no KNOB=VALUE"),
        (["power_limit_w=300,"], "--set '' is no KNOB=VALUE"),
        (["power=300"], "no knob is called 'power'; knobs are sm_mhz, memory_mhz, power_limit_w"),
        (["sm_mhz=1200", "sm_mhz=1300"], "--set names sm_mhz twice"),
        (["power_limit_w=300W"], "'300W' is no number; power_limit_w is in W"),
        (["sm_mhz="], "'' is no number; sm_mhz is in MHz"),
        (["power_limit_w=-1"], "must be more than 0 W"),
        (["power_limit_w=0"], "must be more than 0 W"),
        (["sm_mhz=nan"], "must be more than 0 MHz"),
        (["sm_mhz=inf"], "must be more than 0 MHz"),
    ],
)
def test_what_makes_no_setting_says_how_to_write_one(words, message):
    with pytest.raises(BadSpec) as refused:
        setting(words)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@given(
    st.dictionaries(st.sampled_from([knob.name for knob in KNOBS]), st.floats(0.001, 1e6, allow_nan=False), min_size=1)
)
def test_what_a_setting_shows_reads_back_as_it_was(values):
    assert setting([",".join(f"{knob}={value!r}" for knob, value in values.items())]) == Setting(**values)


def test_a_setting_reads_as_people_say_it():
    assert chosen(Setting(power_limit_w=300, sm_mhz=1200)) == "SM clock at most 1200 MHz, power limit 300 W"
    assert brief(Setting(power_limit_w=300, sm_mhz=1200, memory_mhz=2619)) == "1200 MHz, 2619 MHz memory, 300 W"
    assert shown("sm_mhz", None) == "no lock"
    assert shown("power_limit_w", None) == "unknown"


def back(ending: Ending, gpu: str = "GPU-1", knob: str = "power_limit_w", **values) -> Restored:
    return Restored(gpu, knob, ending, **{"before": 700.0, "wrote": 300.0, "after": 700.0, **values})


@pytest.mark.parametrize(
    ("each", "said"),
    [
        (back(Ending.RESTORED), "restored to 700 W"),
        (back(Ending.UNCHANGED), "unchanged at 700 W"),
        (back(Ending.FOREIGN, after=250.0), "left at 250 W, which someone else had set meanwhile"),
        (back(Ending.STANDING, knob="sm_mhz", after=1500.0), "back to the standing lock of 1500 MHz"),
        (back(Ending.BASELINE, knob="sm_mhz", after=1500.0), "back to the site's baseline of 1500 MHz"),
        (back(Ending.RESET, knob="sm_mhz", after=None), "unlocked again"),
        (back(Ending.FAILED, why="GPU-1 is lost"), "NOT restored yet: GPU-1 is lost"),
        (back(Ending.STALE, why="the driver was loaded anew"), "undone by a new start of the driver or the machine: "),
    ],
)
def test_every_ending_is_said(each, said):
    assert came_back(each).startswith(said)


def test_somebody_elses_value_is_said_once():
    theirs = back(Ending.FOREIGN, after=600.0, why="somebody else has set 600: left")
    assert came_back(theirs) == "left at 600 W, which someone else had set meanwhile"
    unknown = back(Ending.FOREIGN, before=None, wrote=None, after=600.0, why="what was saved is unreadable")
    assert came_back(unknown) == "left at 600 W: what was saved is unreadable"


def test_what_was_in_force_is_said_where_it_was_less_than_what_was_written():
    ((line, trouble),) = restored_lines(
        [back(Ending.RESTORED, wrote=500.0)], gpus=1, effective={"GPU-1": Setting(power_limit_w=400)}
    )
    assert (line, trouble) == ("power limit 500 W (400 W in force), restored to 700 W", False)
    ((same, _),) = restored_lines(
        [back(Ending.RESTORED, wrote=500.0)], gpus=1, effective={"GPU-1": Setting(power_limit_w=500)}
    )
    assert "in force" not in same


def test_every_ending_has_words():
    assert all(came_back(back(ending)) for ending in Ending)


def test_gpus_of_which_the_same_is_to_be_said_share_a_line():
    assert restored_lines([back(Ending.RESTORED)], gpus=1) == [("power limit 300 W, restored to 700 W", False)]
    three = [back(Ending.RESTORED, "GPU-aaaaaaaa-1"), back(Ending.RESTORED, "GPU-b"), back(Ending.FOREIGN, "GPU-c")]
    assert restored_lines(three, gpus=3) == [
        ("2 GPUs: power limit 300 W, restored to 700 W", False),
        ("GPU-c: power limit 300 W, left at 700 W, which someone else had set meanwhile", True),
    ]
    clock = back(Ending.RESET, knob="sm_mhz", wrote=1200.0, after=None)
    assert restored_lines([clock], gpus=1) == [("SM clock at most 1200 MHz, unlocked again", False)]
    untouched = back(Ending.UNCHANGED, wrote=None)
    assert restored_lines([untouched], gpus=1) == [("power limit, unchanged at 700 W", False)]
