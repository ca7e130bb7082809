"""What is remembered comes back as it was; what is none is refused by name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.core.errors import BadSpec
from joulewise.core.knob import Setting
from joulewise.model.learnt import Learnt, LearntPoint

positive = st.floats(1e-3, 1e3)
settings = st.fixed_dictionaries(
    {}, optional={"sm_mhz": positive, "memory_mhz": positive, "power_limit_w": positive}
).map(lambda values: Setting(**values))
points = st.builds(LearntPoint, settings, positive, positive, positive, positive, st.none() | positive, st.booleans())
numbers = st.dictionaries(st.sampled_from(["sm_share", "static_w"]), st.tuples(positive, positive))


@given(st.builds(Learnt, st.none() | positive, st.lists(points, max_size=3).map(tuple), numbers, numbers))
def test_what_is_learnt_survives_its_file(learnt: Learnt) -> None:
    assert Learnt.from_json(learnt.to_json()) == learnt


@pytest.mark.parametrize(
    "text",
    ["", "[]", "3", '{"points": [{"setting": {"colour": 3}}]}', '{"nothing": 1}', '{"card": {"static_w": 3}}',
     '{"points": [{"setting": {}, "time": -1, "time_error": 0.1, "power": 1, "power_error": 0.1}]}'],
)  # fmt: skip
def test_what_is_none_is_refused(text: str) -> None:
    with pytest.raises(BadSpec, match="not what a belief learnt"):
        Learnt.from_json(text)
