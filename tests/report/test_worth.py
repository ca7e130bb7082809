import pytest

from joulewise.report.claim import Claim
from joulewise.report.worth import lines, worth

CLAIM = Claim(1200.0, 1000.0, -0.081, 0.006, 0.008, 0.003, 412_000.0, 30_500.0, 0.018)
PRICES = {"host_w": 800.0, "kwh_price": 0.3, "gpu_hour_price": 3.0, "gpus": ["GPU-1", "GPU-2"]}


def test_slower_gpus_keep_the_node_on_for_longer_and_cost_their_hours():
    found = worth(CLAIM, PRICES)
    extra_s = 1000.0 * 0.008 / 1.008
    assert found.node_j.value == pytest.approx(412_000 - 800 * extra_s)
    assert found.electricity.value == pytest.approx(0.3 * found.node_j.value / 3.6e6)
    assert found.gpu_time.value == pytest.approx(-3.0 * 2 * extra_s / 3600)
    assert found.net.value == pytest.approx(found.electricity.value + found.gpu_time.value)
    assert 0 < found.electricity.half < found.net.half


def test_every_amount_is_said_with_its_interval_and_without_exponents():
    assert lines(worth(CLAIM, PRICES)) == [
        "the whole node: 406 ± 31 kJ saved",
        "electricity: +0.0338 ± 0.0025",
        "GPU time, 7.94 s longer: −0.0132 ± 0.0049",
        "net: +0.0206 ± 0.0057 in the currency of the prices",
    ]


def test_a_loss_is_no_negative_saving():
    lost = Claim(100.0, 90.0, 0.01, 0.02, 0.001, 0.002, -1861.0, 3700.0)
    first, second = lines(worth(lost, {"kwh_price": 0.3}))
    assert first == "the whole node: 1.9 ± 3.7 kJ more"
    assert "e-" not in second
    assert second.startswith("electricity: −0.00016 ± 0.00031")


def test_without_prices_or_a_claim_there_is_no_money():
    assert worth(CLAIM, {}) is None
    assert worth(Claim(10.0), PRICES) is None
    assert worth(CLAIM, {"kwh_price": 0.3}).net is None
