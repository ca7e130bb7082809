"""The catalogue reads, writes, and says clearly what is wrong with a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from joulewise.core.errors import BadSpec, ModelError
from joulewise.model import catalog
from joulewise.model.physics import Load, operate


@pytest.mark.parametrize("key", catalog.names())
def test_every_model_is_whole_and_survives_writing(key: str, tmp_path: Path) -> None:
    model = catalog.load(key)
    assert model.sm_mhz.high == model.chip.sm_max_mhz
    assert model.memory_mhz.high == model.chip.memory_max_mhz
    assert model.power_limit_w.low <= model.default_limit_w <= model.power_limit_w.high
    assert model.chip.sm_floor * model.chip.sm_max_mhz >= model.sm_mhz.low * 0.99
    assert model.chip.deep_idle_w < model.chip.idle_w < model.default_limit_w
    assert model.fit.source
    catalog.save(model, tmp_path / f"{key}.toml")
    assert catalog.load(str(tmp_path / f"{key}.toml")) == model


@pytest.mark.parametrize("key", catalog.names())
def test_every_model_works_at_its_default_and_slows_at_its_lowest_limit(key: str) -> None:
    model = catalog.load(key)
    heavy = Load(0.1, 0.9, dynamic_w=model.default_limit_w, host_s=0.01)
    default = operate(model.chip, heavy, limit_w=model.default_limit_w)
    lowest = operate(model.chip, heavy, limit_w=model.power_limit_w.low)
    assert default.step_s < lowest.step_s
    assert lowest.average_power_w < default.average_power_w <= model.default_limit_w * 1.05
    assert operate(model.chip, heavy, lock_mhz=model.sm_mhz.low).sm_mhz == pytest.approx(model.sm_mhz.low)


def test_the_catalogue_holds_the_models_it_promises() -> None:
    assert {"v100", "a40", "a100", "a100-sxm", "rtx8000", "titanx", "b300", "h200", "p100", "rtx6000"} <= set(
        catalog.names()
    )


@pytest.mark.parametrize("name", ["h200", "H200", "NVIDIA H200", "h200-sxm"])
def test_a_model_is_found_by_key_alias_and_vendor_name(name: str) -> None:
    assert catalog.load(name).key == "h200"


def test_an_unknown_model_is_answered_with_those_that_are_known() -> None:
    with pytest.raises(BadSpec, match=r"no GPU model is called 'h2oo'; there are .*h200.*"):
        catalog.load("h2oo")


def test_a_missing_file_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(BadSpec, match="cannot be read: no such file"):
        catalog.load(str(tmp_path / "none.toml"))


def test_clocks_in_fractional_steps_become_whole_megahertz() -> None:
    clocks = catalog.load("v100").sm_mhz.all()
    assert clocks[:4] == (135.0, 142.0, 150.0, 157.0)
    assert clocks[-1] == 1380.0


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("[law]", "[law", "is not TOML"),
        ('name = "NVIDIA H200"', "", "lacks 'name'"),
        ("\nstatic_w =", "\nztatic_w =", "unknown parameter law.ztatic_w"),
        ("\nidle_w = 124.0\n", "\n", "lacks law.idle_w"),
        ("\nidle_w = 124.0", '\nidle_w = "much"', "law.idle_w='much' is not a number"),
        ('compute_capability = "9.0"', 'compute_capability = "nine"', "has a bad value"),
        ("low = 345.0", "high2 = 345.0", "lacks 'low'"),
    ],
)
def test_a_faulty_file_is_refused_with_the_reason(old: str, new: str, complaint: str) -> None:
    text = catalog.dump(replace(catalog.load("h200"), chip=replace(catalog.load("h200").chip, idle_w=124.0)))
    assert old in text
    with pytest.raises(BadSpec, match=complaint):
        catalog.parse(text.replace(old, new, 1), key="mine")


@pytest.mark.parametrize(
    ("parameter", "value"),
    [("volt_knee", 1.0), ("volt_floor", 0.0), ("sm_floor", 1.2), ("overlap", 0.5), ("deep_idle_w", 1e4)],
)
def test_parameters_without_meaning_are_refused(parameter: str, value: float) -> None:
    chip = replace(catalog.load("a40").chip, **{parameter: value})
    with pytest.raises(ModelError, match=f"law.{parameter}"):
        catalog.check(chip, "a40")


def test_an_unwritable_file_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(BadSpec, match="cannot write"):
        catalog.save(catalog.load("h200"), tmp_path / "no" / "such" / "folder.toml")


def test_a_key_is_made_from_a_vendor_name() -> None:
    assert catalog.key_of("NVIDIA RTX 5090 (laptop)") == "rtx-5090-laptop"
