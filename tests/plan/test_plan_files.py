"""Plans come back from their files exactly; anything else than a plan is refused in a line, whatever was done to it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.core.errors import BadSpec
from joulewise.plan.execution import Launch, launches
from joulewise.plan.plan_files import from_json, read, to_json, write
from joulewise.plan.schedules import read_actions
from tests.plan.made_up import partitioned, plan

MADE = plan()
PLAIN = to_json(MADE)
OVERLAPPED = read_actions([["0F0", "(0F1;0B0)OVERLAP_F_B", "0B1"], ["1F0", "1B0", "1F1", "1B1"]], transfer_s=0.01)


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 16))
def test_a_plan_reads_back_as_it_was_written(stages: int, microbatches: int, gpus: int) -> None:
    made = plan(stages, microbatches, gpus)
    assert from_json(json.loads(json.dumps(to_json(made)))) == made


@pytest.mark.parametrize("made", [MADE, plan(schedule=OVERLAPPED)], ids=["1f1b", "overlapped"])
def test_a_file_keeps_every_digit(tmp_path: Path, made: Any) -> None:
    path = tmp_path / "plan.json"
    write(made, path)
    assert read(path) == made
    assert json.loads(path.read_text()) == to_json(made)
    assert read(path).schedule.dag == made.schedule.dag


def _changed(*place: str | int, to: Any) -> dict[str, Any]:
    changed = copy.deepcopy(PLAIN)
    inner: Any = changed
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = to
    return changed


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, "no plan: its format is not 'joulewise-plan'"),
        ({"format": "joulewise-profile", "version": 1}, "no plan"),
        (_changed("version", to=3), "a plan of version 3, and this joulewise reads 1 and 2"),
        (_changed("version", to=True), "a plan of version True, and"),
        (_changed("options", 0, "launches", to=[]), r"options\[0\] has an unknown field 'launches'"),
        (_changed("extra", to=1), "unknown field 'extra'"),
        (_changed("points", to=[]), "at least one point"),
        (_changed("points", 0, "time_s", to="fast"), r"points\[0\]: time_s is 'fast', not a number"),
        (_changed("points", 0, "time_s", to=0.1), "point 0 promises 0.1 s, but its settings give"),
        (_changed("points", 0, "ranks", 1, to=[0]), r"points\[0\]: rank 1 has 1 choices for 8 operations"),
        (_changed("points", 0, "ranks", to=[]), "has 0 ranks; the schedule has 3"),
        (_changed("points", 0, "ranks", 0, 0, to=True), "a choice that is not a whole number"),
        (_changed("points", 0, "ranks", 0, 0, to=99), "none of number 99"),
        (_changed("options", 0, "time_s", to=-1), r"options\[0\]: time_s is -1; it must be above 0"),
        (_changed("options", 0, "setting", to={"__class__": 1}), "unknown field '__class__'"),
        (_changed("costs", "blocking_w", to=1e400), "blocking_w is inf, not a number"),
        (_changed("costs", "gpus_per_rank", to=0), "gpus_per_rank is 0, not a whole number of 1 or more"),
        (_changed("costs", "gpus_per_rank", to=3), "its parallelism is not the hash of its own schedule"),
        (_changed("identity", "parallelism", to=None), "its parallelism is not the hash of its own schedule"),
        (_changed("identity", "gpu", "sha256", to="abc"), "no hash of 64 hex digits"),
        (_changed("schedule", "rows", 0, to="0F0"), "microbatch 1 at stage 0 has no forward"),
        (_changed("schedule", "rows", 0, to=3), r"rows\[0\] is not a text"),
        (_changed("schedule", "rows", 0, to="__import__('os')"), "is no action"),
        (_changed("assumptions", to=[3]), r"assumptions\[0\] is not a short text"),
    ],
)
def test_what_is_no_plan_is_refused_by_its_part(value: Any, why: str) -> None:
    with pytest.raises(BadSpec, match=why) as refused:
        from_json(value, "made.json")
    assert str(refused.value).startswith("made.json")
    assert "\n" not in str(refused.value)


PARTITIONED = partitioned(MADE)


def test_a_plan_with_launches_is_of_version_2_and_one_without_of_version_1(tmp_path: Path) -> None:
    assert (to_json(PARTITIONED)["version"], PLAIN["version"]) == (2, 1)
    write(PARTITIONED, tmp_path / "plan.json")
    back = read(tmp_path / "plan.json")
    assert back == PARTITIONED
    first = back.steps(back.points[0])[0][0].setting
    assert launches(first) == (Launch("attention", "rope", 15), Launch("mlp", "norm", 6))
    assert first["sm_mhz"] == 1410.0


@pytest.mark.parametrize(
    ("launch", "why"),
    [
        ({"part": "mlp", "slot": "norm"}, r"launches\[0\] has no sms"),
        ({"part": "mlp", "slot": "norm", "sms": 0}, "sms is 0, not a whole number of 1 or more"),
        ({"part": "mlp", "slot": 3, "sms": 1}, "slot is 3, not a short text"),
        ({"part": "mlp", "slot": "norm", "sms": 1, "run": "x"}, "unknown field 'run'"),
    ],
)
def test_launches_that_are_none_are_refused(launch: dict[str, Any], why: str) -> None:
    value = copy.deepcopy(to_json(PARTITIONED))
    value["options"][0]["launches"] = [launch]
    with pytest.raises(BadSpec, match=why):
        from_json(value, "made.json")


def test_a_truncated_file_is_refused_wherever_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write(MADE, path)
    whole = path.read_bytes()
    for end in range(0, len(whole) - 2, len(whole) // 40):
        path.write_bytes(whole[:end])
        with pytest.raises(BadSpec, match="no plan: it is not JSON, or cut short"):
            read(path)


@pytest.mark.parametrize("content", [b"\x89PNG\r\n\x1a\n\x00", b"\xff\xfe", b"[" * 100_000, b'"' + b"x" * 1000 + b'"'])
def test_a_foreign_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    with pytest.raises(BadSpec, match=r"no plan|not text in UTF-8"):
        read(path)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadSpec, match="cannot be read: no such file"):
        read(tmp_path / "plan.json")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(st.data())
def test_no_change_of_one_part_does_worse_than_be_refused(data: st.DataObject) -> None:
    changed = copy.deepcopy(PLAIN)
    inner: Any = changed
    for _ in range(data.draw(st.integers(1, 5))):
        names = list(inner) if isinstance(inner, dict) else range(len(inner))
        if not names:
            break
        name = data.draw(st.sampled_from(names))
        if isinstance(inner[name], (dict, list)) and data.draw(st.booleans()):
            inner = inner[name]
            continue
        inner[name] = data.draw(JSON)
        break
    try:
        made = from_json(changed)
    except BadSpec:
        return
    assert from_json(to_json(made)) == made
