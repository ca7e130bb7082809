import pytest

from joulewise.core.decision import Decision, Expectation
from joulewise.core.knob import Setting


def test_a_decision_carries_its_reason_and_what_it_expects():
    decision = Decision(Setting(sm_mhz=1710), "−20 % energy at +3.9 % time, bound +5 %", Expectation(0.039, -0.20))
    assert "bound" in decision.reason
    assert decision.expected.energy_change == -0.20


def test_a_decision_without_a_reason_is_refused():
    with pytest.raises(ValueError, match="reason"):
        Decision(Setting(), "")
