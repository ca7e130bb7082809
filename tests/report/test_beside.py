import json
import math

import pytest

from joulewise.core.errors import BadSpec
from joulewise.report.beside import Beside, carbon, error_j, method, spent, tiles
from joulewise.report.claim import Claim
from joulewise.report.worth import Amount, Carbon, carbon_lines

MEASURED = {"energy_j": 1000.0, "energy_error_j": 3.0, "gain_error": 0.004, "duration_s": 10.0, "source": "counter"}


def test_what_is_carried_comes_back_as_it_was():
    for whole in (Beside(), Beside(MEASURED, Carbon(380.0, "x")), Beside(None, Carbon(0.0))):
        assert Beside.from_json(json.loads(json.dumps(whole.to_json()))) == whole


@pytest.mark.parametrize(
    "damaged",
    [
        None,
        [],
        {"measured": 3, "carbon": None},
        {"measured": None, "carbon": {"g_per_kwh": "x", "source": None}},
        {"measured": None, "carbon": {"g_per_kwh": -1, "source": None}},
        {"measured": None, "carbon": 5},
    ],
)
def test_what_was_damaged_is_refused(damaged):
    with pytest.raises(ValueError, match="cannot be read"):
        Beside.from_json(damaged)


def test_the_sensors_error_is_in_the_error_of_what_was_used():
    assert error_j(MEASURED) == pytest.approx(math.hypot(3.0, 4.0))
    assert error_j({"energy_j": 5.0}) is None
    assert error_j({**MEASURED, "energy_j": float("nan")}) is None


def test_what_was_not_measured_is_said_and_never_0():
    assert "No energy" in spent(Beside())
    assert tiles(Beside({"energy_j": True})) == []
    gpus = [{"uuid": "GPU-1", "energy_j": None, "reason": "lost <at> once"}, {"uuid": "GPU-2", **MEASURED}]
    text = spent(Beside({**MEASURED, "gpus": gpus, "host_energy_j": 50.0, "exit_code": 2}))
    assert "lost &lt;at&gt; once" in text
    assert "50.00 J more" in text
    assert "exit code 2" in text
    assert "all GPUs" in text


def test_a_simulated_run_is_said_to_be_one():
    assert "simulated or replayed" in method({"virtual": True}, Claim(1.0, held=False), Beside())


def test_a_saving_and_a_loss_in_grams():
    factor = Carbon(360.0, "somebody")  # 0.1 g a kJ
    assert carbon_lines(factor, Amount(10_000.0, 100.0), Amount(2_000.0, 500.0))[:2] == [
        "used: 1.000 ± 0.010 g CO2e",
        "saved: 0.200 ± 0.050 g CO2e",
    ]
    assert carbon_lines(factor, None, Amount(-2_000.0, 500.0))[0] == "more than by default: 0.200 ± 0.050 g CO2e"
    assert carbon_lines(factor, Amount(1e12, 2e10), None)[0] == "used: 100.0 ± 2.0 t CO2e"
    assert carbon(Claim(1.0), Beside(MEASURED)) == ""


def test_a_factor_that_cannot_be_one_is_refused():
    for wrong in (-1.0, math.inf, math.nan):
        with pytest.raises(BadSpec, match="0 or more"):
            Carbon(wrong)
