import pytest

from joulewise.model import catalog
from joulewise.model.fleet_kin import kin_of


@pytest.mark.parametrize("key", catalog.names())
def test_every_model_of_the_catalogue_is_its_own_kin(key):
    model = catalog.load(key)
    kin = kin_of(model.name)
    assert (kin.kind, kin.model, kin.limit_w) == ("own", model, model.default_limit_w)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("NVIDIA H100 80GB HBM3", "NVIDIA H200"),
        ("NVIDIA GH200 480GB", "NVIDIA H200"),
        ("NVIDIA B200", "NVIDIA B300 SXM6 AC"),
        ("NVIDIA A100-SXM-64GB", "NVIDIA A100-SXM4-80GB"),
        ("NVIDIA A800 PCIe", "NVIDIA A100 80GB PCIe"),
        ("NVIDIA A10G", "NVIDIA A40"),
        ("NVIDIA RTX A6000", "NVIDIA A40"),
        ("Tesla V100-SXM2-32GB", "Tesla V100-PCIE-32GB"),
        ("Tesla T4", "Quadro RTX 8000"),
        ("NVIDIA TITAN RTX", "Quadro RTX 8000"),
    ],
)
def test_a_model_that_is_not_in_the_catalogue_has_a_neighbour_of_its_architecture(name, near):
    kin = kin_of(name)
    assert kin.kind == "neighbour"
    assert near in kin.says


@pytest.mark.parametrize("name", ["NVIDIA L40S", "NVIDIA RTX 6000 Ada Generation", "", "MI300X"])
def test_what_is_like_nothing_in_the_catalogue_is_a_stranger(name):
    kin = kin_of(name, limit_w=350.0, most_sm_mhz=2520.0)
    assert (kin.kind, kin.model, kin.limit_w) == ("stranger", None, 350.0)
    assert kin.space.knobs["sm_mhz"].high == 2520.0


def test_a_neighbours_powers_are_scaled_to_the_limit_and_its_clock_is_the_one_seen():
    near, kin = catalog.load("h200"), kin_of("NVIDIA H100 PCIe", limit_w=350.0, most_sm_mhz=1755.0)
    assert kin.model is not None
    assert kin.model.chip.static_w == pytest.approx(0.5 * near.chip.static_w)
    assert kin.model.chip.sm_max_mhz == 1755.0
    assert kin.limit_unsure == 0.0


def test_a_limit_that_nobody_exports_is_guessed_from_the_highest_power_and_less_sure():
    kin = kin_of("NVIDIA H100 80GB HBM3", most_w=690.0)
    assert kin.limit_w == 690.0
    assert kin.limit_unsure > 0.0


def test_a_neighbours_memory_clocks_stand_in_the_same_ratios_to_the_highest_seen_and_are_not_sure():
    kin = kin_of("NVIDIA H100 80GB HBM3", limit_w=700.0, most_memory_mhz=2619.0)
    assert kin.memory_mhz == pytest.approx((2619.0 * 2201.0 / 3201.0, 2619.0))
    assert kin.model is not None
    assert kin.model.chip.memory_max_mhz == 2619.0
    assert not kin.memory_sure
    assert kin_of("NVIDIA H200").memory_sure


def test_a_memory_clock_that_nobody_could_read_is_that_of_the_neighbour():
    kin = kin_of("NVIDIA H100 80GB HBM3", limit_w=700.0, most_memory_mhz=0.0)
    assert kin.memory_mhz == catalog.load("h200").memory_mhz.all()
