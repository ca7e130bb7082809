import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.core.errors import OutOfRange, Unsupported
from joulewise.core.knob import DEFAULT, Choices, Setting, Space

H200 = Space(
    {
        "sm_mhz": Choices(345, 1980, 15),
        "memory_mhz": Choices.of([2201, 3201]),
        "power_limit_w": Choices(200, 700),
    }
)


def test_settings_compare_and_hash_by_value_in_any_order():
    a, b = Setting(sm_mhz=1710, power_limit_w=600), Setting(power_limit_w=600, sm_mhz=1710)
    assert a == b
    assert hash(a) == hash(b)
    assert {a: 1}[b] == 1
    assert repr(a) == "Setting(sm_mhz=1710, power_limit_w=600)"
    assert a != Setting(sm_mhz=1710)
    assert len(DEFAULT) == 0


def test_a_setting_cannot_be_changed_but_copied_with_changes():
    setting = Setting(sm_mhz=1710)
    with pytest.raises(TypeError):
        setting["sm_mhz"] = 1  # type: ignore[index]
    assert setting.with_(power_limit_w=500) == Setting(sm_mhz=1710, power_limit_w=500)
    assert setting == Setting(sm_mhz=1710)


def test_a_setting_survives_pickling():
    setting = Setting(sm_mhz=1710, memory_mhz=3201)
    assert pickle.loads(pickle.dumps(setting)) == setting


def test_an_unknown_knob_is_named():
    with pytest.raises(Unsupported, match="fan_rpm"):
        Setting(fan_rpm=3000)


def test_a_value_out_of_range_names_value_limit_and_way_out():
    with pytest.raises(
        OutOfRange, match=r"sm_mhz=2100 on GPU-3f2a is outside 345–1980 step 15; see 'joulewise doctor'"
    ):
        H200.check(Setting(sm_mhz=2100), gpu="GPU-3f2a")
    with pytest.raises(OutOfRange):
        H200.check(Setting(sm_mhz=1001))
    with pytest.raises(OutOfRange, match="2201, 3201"):
        H200.check(Setting(memory_mhz=2500))
    H200.check(Setting(sm_mhz=1005, memory_mhz=2201, power_limit_w=512.5))


def test_a_knob_that_the_gpu_lacks_is_unsupported():
    with pytest.raises(Unsupported, match="memory_mhz cannot be set"):
        Space({"sm_mhz": Choices(345, 1980, 15)}).check(Setting(memory_mhz=3201))


@given(st.floats(min_value=-1e4, max_value=1e4))
def test_what_is_snapped_may_be_set(value):
    for name, choices in H200.knobs.items():
        snapped = H200.snap(Setting(**{name: value}))
        H200.check(snapped)
        assert all(abs(snapped[name] - value) <= abs(c - value) + 1e-9 for c in choices.all())


@given(st.floats(min_value=-10, max_value=110), st.floats(min_value=1, max_value=100), st.integers(1, 40))
def test_a_range_whose_end_is_between_two_steps_snaps_to_what_it_lists(value, high, step):
    choices = Choices(0, high, step)
    assert choices.snap(value) in choices.all()
    assert choices.snap(value) in choices


@given(
    st.floats(min_value=-10, max_value=110), st.floats(min_value=1, max_value=100), st.sampled_from([None, 1, 7, 15])
)
def test_at_most_is_the_highest_that_may_be_set_and_is_not_above(value, high, step):
    for choices in (Choices(0, high, step), Choices.of([0.0, high / 3, high])):
        found = choices.at_most(value)
        assert found in choices
        assert found <= max(value, choices.low)
        assert not any(found < other <= value for other in choices.all())


@given(
    st.one_of(
        st.builds(Choices, st.just(200.0), st.sampled_from([700.0, 707.0]), st.sampled_from([15.0, 100.0])),
        st.lists(st.integers(200, 707).map(float), min_size=1).map(Choices.of),
    ),
    st.integers(150, 750),
    st.integers(150, 750),
)
def test_within_are_exactly_those_that_lie_between(choices, low, high):
    inside = [value for value in choices.all() if low <= value <= high]
    cut = choices.within(low, high)
    assert (list(cut.all()) if cut is not None else []) == inside


def test_a_range_without_steps_is_cut_to_the_part_in_common():
    assert Choices(200, 700).within(350, 900) == Choices(350, 700)
    assert Choices(200, 700).within(-float("inf"), float("inf")) == Choices(200, 700)
    assert Choices(200, 700).within(701, 900) is None


def test_between_two_values_the_lower_is_nearest():
    for choices in (Choices(0, 10, 1), Choices.of(list(range(11)))):
        assert [choices.snap(value) for value in (0.5, 1.5, 2.5)] == [0, 1, 2]


def test_a_range_lists_all_its_values():
    assert Choices(345, 1980, 15).all()[:2] == (345, 360)
    assert Choices(345, 1980, 15).all()[-1] == 1980
    assert len(Choices(345, 1980, 15).all()) == 110
