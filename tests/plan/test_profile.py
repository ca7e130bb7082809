"""What was measured is taken as it is, or refused with its place."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.core.errors import BadSpec
from joulewise.core.frontier import Point
from joulewise.core.knob import Setting
from joulewise.plan.profile import Profile, averaged
from joulewise.plan.profile_files import read, write
from joulewise.plan.schedules_named import named
from tests.plan.made_up import options, profile

HEADER = "stage,instruction,frequency,time,energy\n"
GOOD = HEADER + "0,forward,1410,0.05,23.8\n0,forward,1200,0.056,19.6\n0,backward,1410,0.09,44.5\n"
ONE = (
    '{"format": "joulewise-profile", "version": 1, "options": '
    '[{"stage": 0, "kind": "forward", "energy_j": 1, "setting": %s}]}'
)
DAG = named("1f1b", stages=2, microbatches=3, ask=False).dag


def test_the_published_profiles_are_read(data: Path) -> None:
    found = read(data / "perseus/stage_profile/gpt3-175b+a100_sxm_bf16.csv")
    assert found.stages == 8
    assert len(found.options) == 16
    fastest = {point.setting["sm_mhz"]: point for point in found.options[0, "forward"]}[1410]
    assert (fastest.time_s, fastest.energy_j) == (0.05016166687011708, 23.80547200000007)
    assert all(len(points) == 38 for points in found.options.values())


def test_our_own_names_of_columns_do_as_well(tmp_path: Path) -> None:
    path = tmp_path / "profile.csv"
    path.write_text(GOOD)
    theirs = read(path)
    path.write_text(GOOD.replace(HEADER, "stage, kind, sm_mhz, time_s, energy_j\n"))
    assert read(path).options == theirs.options


def test_repeats_become_their_mean_with_its_error(tmp_path: Path) -> None:
    path = tmp_path / "profile.csv"
    path.write_text(HEADER + "".join(f"0,forward,1410,{time_s},10\n" for time_s in (0.9, 1.0, 1.1)))
    (point,) = read(path).options[0, "forward"]
    assert point.time_s == pytest.approx(1.0)
    assert point.time_error_s == pytest.approx(0.1 / math.sqrt(3))
    assert (point.energy_j, point.energy_error_j) == (10.0, 0.0)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "cannot be read: no such file"),
        ("", "is empty; a profile has the columns stage, instruction"),
        (HEADER, "the profile is empty"),
        ("0F0,0F1\n1F0,1F1\n", "has no column 'stage'"),
        (HEADER + "0,forward,1410,nan,23.8\n", "line 2: time 'nan' is not a number above 0"),
        (HEADER + "0,forward,1410,inf,23.8\n", "line 2: time 'inf' is not a number above 0"),
        (HEADER + "0,forward,1410,0.05,-1\n", "line 2: energy '-1' is not a number above 0"),
        (HEADER + "0,forward,1410,0,1\n", "line 2: time '0' is not a number above 0"),
        (HEADER + "0,forward,,0.05,1\n", "line 2: frequency '' is not a number above 0"),
        (HEADER + "0.5,forward,1410,0.05,1\n", "line 2: stage 0.5 is not a whole number"),
        (HEADER + "-1,forward,1410,0.05,1\n", "line 2: stage '-1' is not a number of 0 or more"),
        (GOOD + "1,optimizer,1410,0.05,1\n", "line 5: 'optimizer' is no operation; operations are forward, backward"),
        (GOOD + "1,forw", "line 5: 'forw' is no operation"),
        (GOOD + "1,forward,1410,0.05", "line 5: energy '' is not a number above 0"),
    ],
)
def test_a_bad_csv_is_refused_with_its_line(tmp_path: Path, text: str | None, why: str) -> None:
    path = tmp_path / "profile.csv"
    if text is not None:
        path.write_text(text)
    with pytest.raises(BadSpec, match=why) as refused:
        read(path)
    assert str(refused.value).startswith(f"{path}")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "no profile: it is not JSON, or cut short"),
        ("[]", "its format is not 'joulewise-profile'"),
        ('{"format": "joulewise-plan", "version": 1}', "its format is not 'joulewise-profile'"),
        ('{"format": "joulewise-profile", "version": 3}', "of version 3, and this joulewise reads 1 and 2"),
        ('{"format": "joulewise-profile", "version": 1}', "has no options"),
        ('{"format": "joulewise-profile", "version": 1, "options": 3}', "options is 3, not a list"),
        ('{"format": "joulewise-profile", "version": 1, "options": [3]}', r"options\[0\] is 3, not an object"),
        ('{"format": "joulewise-profile", "version": 1, "options": [], "run": "x"}', "unknown field 'run'"),
        (
            ONE % '{"sm_mhz": 1}, "time_s": NaN',
            r"options\[0\]: time_s is nan, not a number",
        ),
        (ONE % '{"volts": 1}, "time_s": 1', "setting has an unknown field 'volts'"),
    ],
)
def test_bad_json_is_refused_with_its_place(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(BadSpec, match=why):
        read(path)


POSITIVE = st.floats(1e-9, 1e9)
ERRORS = st.floats(0, 1e3)
SETTINGS = st.builds(Setting, sm_mhz=st.floats(1, 3000), power_limit_w=st.floats(50, 1000)) | st.builds(Setting)
POINTS = st.lists(
    st.builds(Point, POSITIVE, POSITIVE, SETTINGS, ERRORS, ERRORS),
    min_size=1,
    max_size=4,
    unique_by=lambda point: point.setting,
).map(tuple)
PROFILES = st.dictionaries(
    st.tuples(st.integers(0, 20), st.sampled_from(["forward", "backward", "input_grad", "weight_grad"])),
    POINTS,
    min_size=1,
    max_size=5,
).map(Profile)


@given(PROFILES)
def test_a_profile_reads_back_as_it_was_written(tmp_path_factory: pytest.TempPathFactory, found: Profile) -> None:
    path = tmp_path_factory.mktemp("json") / "profile.json"
    write(found, path)
    assert read(path) == found


def test_operations_of_one_stage_and_kind_share_their_options() -> None:
    found = profile(2).of(DAG)
    same = [points for operation, points in zip(DAG.operations, found, strict=True) if operation.stage == 0]
    assert len(found) == len(DAG.operations)
    assert len({id(points) for points in same}) == 2


def test_options_are_fastest_first() -> None:
    shuffled = Profile({(0, "forward"): tuple(reversed(options(1.0)))})
    assert [point.setting["sm_mhz"] for point in shuffled.options[0, "forward"]] == [1410.0, 1200.0, 990.0]


def test_a_stage_or_kind_that_was_not_measured_is_named() -> None:
    with pytest.raises(BadSpec, match=r"stage 1 is missing in the profile, which has 0…0; measure it"):
        profile(1).of(DAG)
    with pytest.raises(BadSpec, match=r"the backward of stage 0 is missing in .* which has its forward; measure it$"):
        profile(2, ["forward"]).of(DAG)
    split = named("zero-bubble", stages=2, microbatches=3, ask=False).dag
    with pytest.raises(BadSpec, match=r"the input_grad of stage 0 is missing .*--split-backward"):
        profile(2).of(split)


def test_one_clock_everywhere_leaves_nothing_to_plan() -> None:
    alone = Profile({key: points[:1] for key, points in profile(2).options.items()})
    with pytest.raises(BadSpec, match="one setting only, so there is nothing to choose"):
        alone.of(DAG)


def test_one_clock_somewhere_is_said() -> None:
    some = {key: points[:1] if key[0] == 1 else points for key, points in profile(2).options.items()}
    assert Profile(some).remarks() == [
        "measured at one setting only, so never slowed down: backward of stage 1, forward of stage 1"
    ]
    assert profile(2).remarks() == []
    assert len(Profile(some).of(DAG)) == len(DAG.operations)


def test_scaling_scales_errors_too() -> None:
    (point,) = (
        averaged([(0, "forward", Point(1.0, 2.0, Setting(), 0.1, 0.2))])
        .scaled(time=10, energy=80)
        .options[0, "forward"]
    )
    assert point == Point(10.0, 160.0, Setting(), 1.0, 16.0)
    for factor in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(BadSpec, match="above 0"):
            profile(1).scaled(time=factor)


def test_a_backward_splits_into_halves_that_sum_to_it() -> None:
    whole = profile(2)
    split = whole.with_split_backward(0.4)
    for at, point in enumerate(whole.options[1, "backward"]):
        first, second = (split.options[1, kind][at] for kind in ("input_grad", "weight_grad"))
        assert first.setting == second.setting == point.setting
        assert first.time_s == pytest.approx(0.4 * point.time_s)
        assert first.energy_j + second.energy_j == pytest.approx(point.energy_j)
    measured = Profile({**whole.options, (1, "input_grad"): options(0.3)})
    assert measured.with_split_backward(0.4).options[1, "input_grad"] == measured.options[1, "input_grad"]
    with pytest.raises(BadSpec, match="between 0 and 1, not 1"):
        whole.with_split_backward(1.0)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "is empty"),
        ({(0, "forward"): ()}, "measured at no setting"),
        ({(0, "sideways"): options(1.0)}, "an operation 'sideways'"),
        ({(-1, "forward"): options(1.0)}, "stage -1 is below 0"),
        ({(0, "forward"): (Point(0.0, 1.0, Setting()),)}, "time_s 0; it must be above 0"),
        ({(0, "forward"): (Point(1.0, -1.0, Setting()),)}, "energy_j -1; it must be above 0"),
        ({(0, "forward"): (Point(1.0, 1.0, Setting(), math.nan),)}, "time_error_s nan"),
        ({(0, "forward"): (Point(1.0, 1.0, Setting()), Point(2.0, 1.0, Setting()))}, "a setting twice"),
    ],
)
def test_what_cannot_have_been_measured_is_refused(
    options: dict[tuple[int, str], tuple[Point[Setting], ...]], why: str
) -> None:
    with pytest.raises(BadSpec, match=why):
        Profile(options)
