"""When steps ended is kept as it was, in little space, and damage is told."""

from __future__ import annotations

import pytest

from joulewise.core.errors import BadSpec
from joulewise.core.event import from_json, to_json
from joulewise.store.pace import PaceRecord, pace_stream, read


def steps(count: int, step_s: float, phase: str = "", start_s: float = 10.0) -> list[tuple[float, float, str, float]]:
    return [(start_s + step_s * i, start_s + step_s * (i + 1), phase, i + 1.0) for i in range(count)]


def test_steps_are_read_as_they_were_written_in_several_parts() -> None:
    record = PaceRecord()
    rows = steps(100, 0.25)
    events = [record.event(rows[:40], "run"), record.event(rows[40:], "run"), record.event([], "run", last=True)]
    pace = read(from_json(to_json(event)) for event in events if event is not None)[""]
    assert pace.work == [1.0] * 100
    assert pace.start_s == pytest.approx([row[0] for row in rows], abs=1e-4)
    assert pace.end_s == pytest.approx([row[1] for row in rows], abs=1e-4)


def test_short_steps_are_kept_together_and_none_is_lost() -> None:
    event = PaceRecord().event(steps(1000, 0.004), "run", last=True)
    assert event is not None
    pace = read([event])[""]
    assert sum(pace.work) == 1000.0
    assert len(pace.work) <= 45


def test_phases_are_kept_apart() -> None:
    rows = [(0.0, 1.0, "train", 1.0), (1.0, 2.0, "rollout", 3.0), (2.5, 3.5, "train", 4.0)]
    event = PaceRecord().event(rows, "run", last=True)
    assert event is not None
    found = read([event])
    assert found["train"].work == [1.0, 1.0]
    assert found["train"].start_s == pytest.approx([0.0, 2.5])
    assert found["rollout"].work == [2.0]


def test_a_step_takes_few_bytes() -> None:
    event = PaceRecord().event(steps(4000, 0.2371), "run", last=True)
    assert event is not None
    assert len(to_json(event)) < 4 * 4000


@pytest.mark.parametrize("damaged", ["", "not base64!", "QUJD", 7, None])
def test_damage_is_told(damaged: object) -> None:
    event = PaceRecord().event(steps(3, 1.0), "run", last=True)
    assert event is not None
    event.facts["pace"] = damaged  # type: ignore[index]
    with pytest.raises(BadSpec, match="damaged"):
        read([event])


def test_it_stands_beside_the_journal() -> None:
    assert pace_stream("x") == "pace/x"
