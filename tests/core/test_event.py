import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.core.block import Block, Role, Rung
from joulewise.core.decision import Decision, Expectation, Verdict
from joulewise.core.errors import BadSpec
from joulewise.core.event import (
    Aimed,
    Asked,
    Began,
    Decided,
    Expired,
    Finished,
    Led,
    Limited,
    Observed,
    Ordered,
    Progressed,
    Proven,
    Registered,
    Seen,
    Shifted,
    Told,
    Turned,
    from_json,
    to_json,
)
from joulewise.core.knob import Setting
from joulewise.core.measurement import Measurement, Outcome, Source
from joulewise.core.series import EpochCost, Platform, Purpose, Recurring

number = st.floats(allow_nan=False, allow_infinity=False)
settings = st.builds(
    lambda d: Setting(**d), st.dictionaries(st.sampled_from(["sm_mhz", "memory_mhz", "power_limit_w"]), number)
)
decisions = st.builds(
    Decision,
    settings,
    st.text(min_size=1).filter(str.strip),
    st.builds(Expectation, st.none() | number, st.none() | number),
)
measurements = st.builds(
    Measurement,
    settings,
    number,
    number,
    number,
    number,
    st.sampled_from(Source),
    number,
    st.sampled_from(Outcome),
    st.tuples(st.text()),
)
above_zero = st.floats(min_value=1e-9, max_value=1e9)
blocks = st.builds(
    Block,
    settings,
    number,
    number,
    above_zero,
    above_zero,
    number,
    number,
    number,
    phase=st.text(),
    rung=st.sampled_from(Rung),
    sm_mhz=st.none() | number,
    power_capped=st.none() | st.booleans(),
    left_out_s=number,
)
facts = st.dictionaries(st.text(), st.none() | st.booleans() | number | st.text() | st.lists(st.text()))
jobs = st.builds(
    lambda sizes, pick, epochs, target, facts: Recurring(
        "nightly", tuple(sorted(sizes)), sorted(sizes)[pick % len(sizes)], epochs, target, facts
    ),
    *(st.sets(st.integers(1, 10**6), min_size=1), st.integers(0), st.integers(1), st.text(), facts),
)
platforms = st.builds(Platform, st.text(), st.integers(1), number)
positive = st.floats(1e-6, 1e9)
profiles = st.lists(st.builds(EpochCost, positive, positive, settings, positive, positive)).map(tuple)
notes = st.lists(st.text()).map(tuple)
events = st.one_of(
    st.builds(Began, number, st.text(), facts),
    st.builds(Seen, number, st.sampled_from(Role), blocks, st.text()),
    st.builds(Shifted, number, st.text(), st.text(), st.text()),
    st.builds(Finished, number, st.text(), facts),
    st.builds(Decided, number, decisions),
    st.builds(Observed, number, decisions, measurements, st.builds(Verdict, st.none() | st.booleans(), st.text())),
    st.builds(Registered, number, jobs),
    st.builds(
        Asked,
        *(number, st.integers(0), st.text(), st.integers(1), platforms, st.sampled_from(Purpose), st.text(), number),
        *(st.text(), st.text()),
    ),
    st.builds(Progressed, number, st.integers(0), st.integers(0), number, profiles),
    st.builds(Told, number, st.integers(0), st.sampled_from(Outcome), st.integers(0), number, number, profiles, notes),
    st.builds(Expired, number, st.integers(0), st.text()),
    st.builds(Proven, number, number, number, number, number),
    st.builds(Led, number, st.integers(0), facts),
    st.builds(Ordered, number, st.text(), facts),
    st.builds(Aimed, number, st.integers(0), st.text(), st.text(), facts, st.text()),
    st.builds(Turned, number, st.text(), st.text(), facts),
    st.builds(Limited, number, st.text(), facts),
)


@given(events)
def test_an_event_survives_the_way_to_json_and_back(event):
    line = to_json(event)
    assert "\n" not in line
    assert from_json(line) == event


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"event":"Guessed"}',
        '{"event":"Expired","trial":1}',
        '{"event":"Asked","time_s":1,"trial":0,"platform":{"fan":1}}',
    ],
)
def test_what_is_no_event_is_refused_by_name(line):
    with pytest.raises(BadSpec, match="not an event"):
        from_json(line)


def test_a_decision_needs_a_reason():
    with pytest.raises(ValueError, match="reason"):
        Decision(Setting(sm_mhz=1710), "  ")
