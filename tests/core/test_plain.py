import json
import math
from dataclasses import dataclass

import pytest

from joulewise.core.errors import BadSpec
from joulewise.core.event import Asked, Told
from joulewise.core.knob import Setting
from joulewise.core.measurement import Outcome
from joulewise.core.plain import built, plain
from joulewise.core.series import EpochCost, Platform, Purpose
from joulewise.serve.answers import model_of

ASKED = Asked(1.5, 3, "r", 8, Platform("x", 2, 9.0), Purpose.EXPLORE, "why", 2.5, "me", "k")
TOLD = Told(1.5, 3, Outcome.REACHED, 4, 1.0, 2.0, (EpochCost(1.0, 2.0, Setting(sm_mhz=900)),), ("a", "b"))


@dataclass(frozen=True, slots=True)
class Odd:
    low: float
    maybe: float | None
    inner: Asked | None = None
    pair: tuple[int, Setting] = (1, Setting())


@pytest.mark.parametrize("value", [ASKED, TOLD, Odd(1.0, None, ASKED, (3, Setting(power_limit_w=300.0)))])
def test_what_is_sent_is_what_arrives_and_what_was_described(value):
    sent = json.loads(json.dumps(plain(value), allow_nan=False))
    assert built(type(value), sent) == value
    assert model_of(type(value)).model_validate(sent).model_dump() == sent


def test_what_is_infinite_travels_as_none():
    assert plain(Odd(math.inf, math.nan)) == {"low": None, "maybe": None, "inner": None, "pair": [1, {}]}
    assert built(Odd, plain(Odd(math.inf, math.nan))) == Odd(math.inf, None)


def test_fields_of_another_day_do_no_harm():
    sent = {**plain(Odd(1.0, 2.0)), "new": 7}
    del sent["inner"]
    assert built(Odd, sent) == Odd(1.0, 2.0)


@pytest.mark.parametrize("sent", [{}, None, 7, {"low": 1.0, "maybe": 2.0, "pair": [1]}, {"low": "x", "maybe": None}])
def test_what_is_something_else_is_refused(sent):
    with pytest.raises(BadSpec, match="not a Odd as it is known here"):
        built(Odd, sent)
