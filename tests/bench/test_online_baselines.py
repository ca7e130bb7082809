"""The methods to compare with: each does what it is said to do, and pays for what it looks at."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.online_baselines import Predictor, methods, play, reproduction
from bench.online_table import Table, tables
from joulewise.core.knob import Choices, Setting, Space
from joulewise.model import catalog, physics
from joulewise.model.physics import Load

CLOCKS = tuple(float(clock) for clock in range(900, 1741, 60))


def made(name: str, sm_share: float) -> Table:
    """An application as the law has it, over clocks of an A40."""
    chip = catalog.load("a40").chip
    load = Load(0.2, sm_share=sm_share, dynamic_w=200.0)
    seen = {clock: physics.operate(chip, load, lock_mhz=clock) for clock in CLOCKS}
    points = {Setting(sm_mhz=clock): (one.step_s, one.average_power_w) for clock, one in seen.items()}
    top = Setting(sm_mhz=CLOCKS[-1])
    activity = {"dram": 1.0 - sm_share, "sm": 0.95, "fp32": sm_share}
    return Table(name, Space({"sm_mhz": Choices.of(CLOCKS)}), points, activity, top)


TRAINED = Predictor([made(f"micro {i}", i / 20.0) for i in range(21)])


@pytest.mark.parametrize("sm_share", [0.05, 0.5, 0.97])
def test_every_method_saves_within_its_bound_or_leaves_the_job_alone(sm_share: float) -> None:
    table = made("job", sm_share)
    oracle = table.saving(table.best(0.05))
    for name, method in methods(TRAINED).items():
        played = play(name, method, table, 0.05, seed=3)
        assert played.job.ended
        assert table.saving(played.chosen) <= oracle or table.slowdown(played.chosen) > 0.05
        assert played.job.saving > -0.02
        assert table.slowdown(played.chosen) < 0.065  # noise of a window, not more
        if name not in ("default", "oracle"):
            assert played.job.probe_j > 0.0
        if name in ("bisection", "odpp"):  # GPOEO's E·T² leaves compute-bound work alone
            assert played.job.saving > 0.5 * oracle


def test_the_oracle_is_free_and_the_default_saves_nothing() -> None:
    table = made("job", 0.5)
    known = methods(None)
    oracle = play("oracle", known["oracle"], table, 0.05, seed=0)
    assert oracle.job.probe_j == 0.0
    assert oracle.job.saving == pytest.approx(table.saving(oracle.chosen), rel=1e-3)
    assert play("default", known["default"], table, 0.05, seed=0).job.saving == pytest.approx(0.0, abs=1e-9)


def test_bisection_needs_about_as_many_looks_as_halvings() -> None:
    played = play("bisection", methods(None)["bisection"], made("job", 0.5), 0.05, seed=1)
    assert 3 <= played.job.candidates <= 4  # 15 clocks


def test_gpoeos_predictor_alone_does_what_was_published_of_it(data: Path) -> None:
    found = reproduction(
        Predictor(tables(data / "dvfs" / "rtx8000-dvfs-microbenchmark-profile.csv")),
        tables(data / "dvfs" / "rtx8000-dvfs-real.csv"),
    )
    assert found["predictor_oracle_saving_pct"] == pytest.approx(11.4, abs=0.1)
    assert 0.60 <= found["predictor_oracle_share"] <= 0.72
    assert 0.0 <= found["predictor_over_bound"] <= 0.15
    assert found["predictor_time_error_pct"] == pytest.approx(6.6, abs=1.0)
