"""bench.partition_gpu measures every cell it can in its time, keeps all of it, and its score is arithmetic."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest

from bench.partition_gpu import LEAD_S, Result, cells, main, measured
from bench.partition_gpu_cells import (
    BLOCKS,
    FEW_BLOCKS,
    NOWHERE,
    SEQUENTIAL,
    SEQUENTIAL_BLOCKS,
    SLOTS,
    Cell,
    Launch,
    Measured,
    Row,
    beside,
    fastest,
    grid,
)
from bench.partition_gpu_layer import Shape
from bench.partition_gpu_score import FILE, Mean, figures, ratio, read, slowed, table, times
from bench.partition_gpu_score import main as score
from bench.partition_gpu_sim import by_neighbours, schedule
from bench.partition_gpu_ticks import Tick, Watch, power, ticks
from joulewise.core.errors import BadSpec
from joulewise.core.measurement import EnergyReading, Reading, Throttle

COMPUTE_S = {"attention": 1e-3, "mlp": 2e-3}
LAYERS, GAP = 4, 1.05
REST_S = 0.1
"""What a cell of the made-up stage takes beside its lead and its window of 1 s."""
PROVENANCE = {"shape": {"layers": LAYERS}}
EVERY = sum(
    len(slots) * len(blocks) + len(SEQUENTIAL_BLOCKS) for slots in SLOTS.values() for blocks in (BLOCKS, FEW_BLOCKS)
)


class Law:
    """A stage of the bench whose time passes only in windows and whose cells follow a law, with noise of repeats."""

    def __init__(self, seconds: float, noise: float = 0.0) -> None:
        self.left_s, self._noise = seconds, noise
        self._random = random.Random(5)

    def measure(self, cell: Cell, *, lead_s: float, window_s: float) -> Measured:
        self.left_s -= lead_s + window_s + REST_S
        luck = 1.0 + self._noise * self._random.gauss(0.0, 1.0)
        time_s, energy_j = self._law(cell)
        time_s, energy_j = time_s * luck, energy_j * luck
        power_w = energy_j / time_s
        return Measured(
            time_s, 1e-4 * time_s, energy_j, 2e-3 * energy_j, power_w, 1.0, 1500.0, 5.0, 40.0, None, window_s
        )

    def provenance(self):
        return PROVENANCE

    def _law(self, cell: Cell) -> tuple[float, float]:
        if cell.part == "stack":
            parts = [
                self._law(Cell(cell.values, part, (launch,), cell.split))
                for part, launch in zip(SLOTS, cell.launches, strict=True)
            ]
            often = GAP * LAYERS * (2 if cell.split else 1)
            return often * sum(time for time, _ in parts), often * sum(energy for _, energy in parts)
        launch, size = cell.launches[0], 1.0 if cell.split else 1.9
        watts = 700.0 if cell.values == "random" else 400.0
        moving_s = 0.0 if launch.slot == NOWHERE and not launch.blocks else 4e-3 / min(launch.blocks, 16)
        if cell.part == "communication":
            return moving_s, 200.0 * moving_s
        compute_s = size * COMPUTE_S[cell.part]
        if launch.slot in (SEQUENTIAL, NOWHERE):
            return compute_s + moving_s * round(size), watts * compute_s + 200.0 * moving_s * round(size)
        place = SLOTS[cell.part].index(launch.slot)
        compute_s *= 132 / (132 - launch.blocks)
        took_s = max(compute_s, compute_s * place / len(SLOTS[cell.part]) + moving_s)
        return took_s, watts * compute_s + 150.0 * (took_s + 0.1 * moving_s)


def played(seconds: float, path: Path | None = None, noise: float = 0.0) -> Result:
    result = Result(PROVENANCE, path)
    measured(Law(seconds, noise), result)
    return result


def seen(cell: Cell, repeat: int, time_s: float, energy_j: float = 1.0, error: float = 0.0) -> Row:
    made = Measured(time_s, error * time_s, energy_j, error * energy_j, 1.0, 1.0, None, None, None, None, 1.0)
    return Row(cell, repeat, made)


def test_a_grid_holds_every_slot_with_every_count_once_and_sequential_ones():
    every = grid("random", "mlp", BLOCKS)
    assert len(set(every)) == len(every) == 4 * len(BLOCKS) + len(SEQUENTIAL_BLOCKS)


def test_every_cell_is_measured_twice_and_no_second_before_all_firsts(tmp_path):
    result = played(10_000.0, tmp_path / "partition.json")
    assert result.left_out == []
    repeats = [row.repeat for row in result.rows]
    assert repeats == sorted(repeats)
    first, second = ({row.cell for row in result.rows if row.repeat == repeat} for repeat in (1, 2))
    assert first == second
    assert len(result.rows) == 2 * len(first)
    schedules = [row.cell for row in result.rows if row.cell.split and row.cell.part in SLOTS]
    assert sum(cell.launches[0].slot != NOWHERE for cell in schedules) == 2 * EVERY
    orders = [[row.cell for row in result.rows if row.repeat == repeat] for repeat in (1, 2)]
    assert orders[0] != orders[1], "both repeats meet the same drifts at the same places"


def test_both_repeats_are_of_the_same_stacks_although_noise_moves_the_fastest():
    result = played(10_000.0, noise=0.05)
    stacks = [
        {row.cell for row in result.rows if row.repeat == repeat and row.cell.part == "stack"} for repeat in (1, 2)
    ]
    assert stacks[0] == stacks[1] != set()


def test_what_the_file_holds_is_what_was_measured(tmp_path):
    result = played(10_000.0, tmp_path / "partition.json", noise=0.01)
    _, rows = read(tmp_path / "partition.json")
    assert [(row.cell, row.repeat) for row in rows] == [(row.cell, row.repeat) for row in result.rows]
    for mine, theirs in zip(rows, result.rows, strict=True):
        assert mine.measured.energy_j == pytest.approx(theirs.measured.energy_j, rel=1e-5)


def test_when_the_time_is_over_the_rest_is_counted_and_named(tmp_path):
    result = played(60.0, tmp_path / "partition.json")
    whole = json.loads((tmp_path / "partition.json").read_text())
    assert len(whole["cells"]) == len(result.rows) == pytest.approx(60.0 / (LEAD_S + 1.0 + REST_S), abs=2)
    assert "the time was over" in whole["left_out"][0]


def test_a_cell_that_fails_leaves_all_before_it_in_the_file(tmp_path):
    class Failing(Law):
        def measure(self, cell, *, lead_s, window_s):
            if self.left_s < 990.0:
                raise RuntimeError("CUDA error")
            return super().measure(cell, lead_s=lead_s, window_s=window_s)

    with pytest.raises(RuntimeError, match="CUDA"):
        measured(Failing(1000.0), Result(PROVENANCE, tmp_path / "partition.json"))
    assert len(json.loads((tmp_path / "partition.json").read_text())["cells"]) == math.ceil(
        10.0 / (LEAD_S + 1.0 + REST_S)
    )


def test_no_stack_is_asked_for_before_a_schedule_was_measured():
    assert [cell.launches for cell in beside("zeros", []) if cell.part == "stack"] == [
        tuple(Launch(SLOTS[part][0], 32) for part in SLOTS)
    ]
    assert fastest([], "zeros", "mlp") is None
    assert len(list(cells(("zeros",), 1, []))) == len(beside("zeros", [])) + sum(
        len(grid("zeros", part, FEW_BLOCKS)) for part in SLOTS
    )


def test_the_fastest_is_by_mean_and_never_work_without_communication():
    quick, slow = Launch("norm", 8), Launch("rope", 8)
    rows = [
        seen(Cell("random", "attention", (quick,)), 1, 3.0),
        seen(Cell("random", "attention", (quick,)), 2, 1.0),
        seen(Cell("random", "attention", (slow,)), 1, 2.5),
        seen(Cell("random", "attention", (Launch(NOWHERE, 0),)), 1, 0.5),
        seen(Cell("zeros", "attention", (slow,)), 1, 0.1),
    ]
    assert fastest(rows, "random", "attention") == quick
    assert fastest(rows, "random", "attention", only=SEQUENTIAL) is None


def test_a_ring_sends_seven_quarters_of_a_tensor_over_eight_gpus():
    shape = Shape()
    assert shape.link_bytes(2) == 7 * (2 * 2 * 4096 * 8192) // 4


def test_power_between_ticks_is_exact_however_the_looks_fall():
    # The counter moves every 0.1 s by 60 J; looks every 7 ms.
    looks = [EnergyReading(0.007 * i, 60.0 * math.floor(0.007 * i / 0.1), 0.003) for i in range(180)]
    found = power(ticks(looks))
    assert found.power_w == pytest.approx(600.0, abs=3.0 * found.error_w)
    assert 0.0 < found.error_w / found.power_w < 0.004
    assert found.drift == pytest.approx(1.0, abs=0.05)


def test_power_that_rises_is_seen_as_drift():
    found = power([Tick(0.1 * i, 1e-3, 30.0 * i + (i > 5) * 10.0 * (i - 5)) for i in range(11)])
    assert found.drift == pytest.approx(4.0 / 3.0)


def test_a_single_tick_is_no_window():
    with pytest.raises(ValueError, match="no window"):
        power([Tick(0.0, 1e-3, 1.0)])


class Meter:
    """A GPU of 500 W whose counter moves every 20 ms of real time; or never."""

    def __init__(self, *, moving: bool = True) -> None:
        self._moving = moving

    def energy(self) -> EnergyReading:
        import time

        time.sleep(0.001)
        now_s = time.monotonic()
        return EnergyReading(now_s, 10.0 * math.floor(now_s / 0.02) if self._moving else 1.0)

    def read(self) -> Reading:
        return Reading(0.0, sm_mhz=1500.0, throttle=frozenset({Throttle.POWER_CAP}))


def test_a_watch_ends_by_itself_and_says_clock_and_cap():
    watch = Watch(Meter(), 0.01, 0.1).start()
    found = watch.result()
    assert watch.done
    assert found.duration_s > 0.09
    assert found.power_w == pytest.approx(500.0, rel=0.3)  # a busy machine looks late
    assert (watch.mean("sm_mhz"), watch.spread("sm_mhz"), watch.capped_share()) == (1500.0, 0.0, 1.0)
    assert watch.mean("temperature_c") is None


def test_a_counter_that_stands_still_is_an_error_and_no_endless_loop():
    with pytest.raises(TimeoutError, match="did not move"):
        Watch(Meter(moving=False), 0.0, 0.01).start().result()


def test_means_state_the_larger_of_scatter_and_stated_error():
    cell = Cell("random", "mlp", (Launch("norm", 8),))
    mean = Mean([seen(cell, 1, 0.9, error=0.01), seen(cell, 2, 1.1, error=0.01)])
    value, error = mean.of(cell, 0)
    assert value == pytest.approx(1.0)
    assert error == pytest.approx(math.sqrt(0.02) / math.sqrt(2))
    assert mean.of(cell, 1)[1] == pytest.approx(0.01 / math.sqrt(2))
    assert mean.of(cell, 0, lambda repeat: repeat > 1)[0] == pytest.approx(1.1)
    assert mean.of(Cell("zeros", "mlp", cell.launches), 0) is None


def test_errors_of_ratios_and_sums_add_in_squares():
    assert ratio((2.0, 0.06), (4.0, 0.16)) == pytest.approx((0.5, 0.025))
    assert times(3.0, [(1.0, 0.3), (2.0, 0.4)]) == pytest.approx((9.0, 1.5))
    assert times(3.0, [(1.0, 0.3), None]) is None
    assert ratio(None, (1.0, 0.1)) is None


def test_the_score_finds_the_law_that_was_measured(tmp_path):
    path = tmp_path / "partition.json"
    played(10_000.0, path, noise=0.001)
    provenance, rows = read(path)
    found = figures(provenance, rows, 2)
    assert found["random.attention.candidates"] == 5 * len(BLOCKS) + len(SEQUENTIAL_BLOCKS)
    assert found["zeros.mlp.repeats"] == 2
    stacks = [name for name in found if name.endswith("time_over_sum")]
    assert len(stacks) >= 6
    for name in stacks:
        assert found[name] == pytest.approx(GAP, abs=5 * found[f"{name}_error"])
    assert found["random.mlp.split_time_over_whole"] == pytest.approx(2 / 1.9, rel=0.01)
    assert found["random.attention.fastest_time_over_sequential"] < 1.0
    assert found["random.attention.ours_evaluations"] <= found["random.attention.random_evaluations"]
    assert found["random.mlp.power_w"] > found["zeros.mlp.power_w"]
    assert 0.0005 < found["repeat_scatter_time"] < 0.002


def test_the_best_is_judged_by_another_repeat_than_the_one_that_chose_it():
    lucky, steady, after = Launch("norm", 8), Launch("rope", 8), Launch(SEQUENTIAL, 16)
    times_s = {lucky: (0.5, 1.5), steady: (0.9, 0.9), after: (1.0, 1.0)}
    rows = [
        seen(Cell("random", "attention", (launch,)), repeat, time_s)
        for launch, both in times_s.items()
        for repeat, time_s in enumerate(both, start=1)
    ]
    found = figures(PROVENANCE, rows, 1)
    assert found["random.attention.fastest"] == "norm×8"
    assert found["random.attention.fastest_time_over_sequential"] == pytest.approx(1.5)


def test_an_error_is_by_the_scatter_of_its_own_values_and_part():
    steady, wild = Cell("zeros", "mlp", (Launch("norm", 8),)), Cell("random", "mlp", (Launch("norm", 8),))
    mean = Mean([seen(steady, 1, 1.0), seen(steady, 2, 1.0), seen(wild, 1, 0.9), seen(wild, 2, 1.1)])
    assert mean.of(steady, 0)[1] == 0.0
    assert mean.of(wild, 0)[1] == pytest.approx(0.1)


def test_a_stack_is_set_against_the_same_repeats_of_its_partitions():
    pair = (Launch("norm", 8), Launch("norm", 8))
    rows = [seen(Cell("random", part, pair[:1]), repeat, 1.0 * repeat) for part in SLOTS for repeat in (1, 2)]
    rows += [seen(Cell("random", "stack", pair), repeat, 16.0 * repeat) for repeat in (1, 2)]
    found = figures(PROVENANCE, rows, 1)
    assert found["random.stack.split.norm×8+norm×8.time_over_sum"] == pytest.approx(16.0 / (LAYERS * 2 * 2))


def test_slopes_of_what_the_lower_clock_does_are_those_put_in():
    rows = []
    for place, slot in enumerate(SLOTS["mlp"]):
        for blocks in FEW_BLOCKS:
            cell = (Launch(slot, blocks),)
            rows.append(seen(Cell("zeros", "mlp", cell), 1, 1.0 + place))
            slower = math.exp(0.2 - 0.01 * place + 0.03 * math.log2(blocks))
            rows.append(seen(Cell("random", "mlp", cell), 1, (1.0 + place) * slower))
    found = slowed(Mean(rows), "mlp")
    assert found["mlp.slowed_per_slot"] == pytest.approx(-0.01)
    assert found["mlp.slowed_per_doubling"] == pytest.approx(0.03)
    assert slowed(Mean(rows), "attention") == {}


def test_the_simulator_is_told_slots_by_their_place_and_sequential_ones_apart():
    told = schedule("mlp", Launch("activation", 12))
    assert (told.start, told.end, told.sms) == (2, 3, 12)
    assert schedule("mlp", Launch(SEQUENTIAL, 16)).sequential


def test_the_guess_beside_the_simulator_is_the_mean_of_the_other_slots_alone():
    launches = [
        Launch("norm", 8),
        Launch("linear1", 8),
        Launch("linear2", 8),
        Launch("norm", 16),
        Launch(SEQUENTIAL, 8),
    ]
    means = np.array([[2.0, 4.0], [1.0, 1.0], [2.0, 2.0], [9.0, 9.0], [9.0, 9.0]])
    assert by_neighbours(launches, means, "linear1").tolist() == [[1.0], [2.0]]


def test_the_committed_grid_is_whole_and_names_no_place_of_the_machine_that_measured_it():
    provenance, rows = read(FILE)
    assert "/" not in provenance["command"]
    assert json.loads(FILE.read_text())["left_out"] == []
    often = {(row.cell, row.repeat) for row in rows}
    assert len(often) == len(rows)
    for values, blocks in (("random", BLOCKS), ("zeros", FEW_BLOCKS)):
        for part in SLOTS:
            assert {(cell, repeat) for cell in grid(values, part, blocks) for repeat in (1, 2)} <= often
            _, launches = table(rows, values, part)
            assert {launch.slot for launch in launches} == {*SLOTS[part], SEQUENTIAL}
    for row in rows:
        one = row.measured
        assert all(math.isfinite(value) for value in (one.time_s, one.energy_j, one.power_w, one.sm_mhz))
        assert min(one.time_s, one.time_error_s, one.energy_j, one.energy_error_j) > 0.0
        assert one.energy_j == pytest.approx(one.power_w * one.time_s, rel=1e-4)
        assert one.power_w < 1.01 * provenance["power_limit_w"]


def test_the_committed_grid_is_scored_in_finite_figures_and_overlap_beats_sequential():
    found = figures(*read(FILE), 1)
    assert all(math.isfinite(value) for value in found.values() if not isinstance(value, str))
    for values in ("random", "zeros"):
        for part in SLOTS:
            name = f"{values}.{part}.fastest_time_over_sequential"
            assert found[name] + 3.0 * found[f"{name}_error"] < 1.0
        assert sum(name.startswith(f"{values}.stack") and name.endswith("time_over_sum") for name in found) == 4
    assert found["random.mlp.sm_mhz"] < found["zeros.mlp.sm_mhz"]


def test_a_table_of_an_unfinished_run_has_the_repeats_that_all_have():
    result = played(200.0)
    grid_of_some, launches = table(result.rows, "random", "mlp")
    assert grid_of_some.time_s.shape == (len(launches), 1)


def test_the_score_prints_one_object(tmp_path, capsys):
    played(10_000.0, tmp_path / "partition.json")
    score([str(tmp_path / "partition.json"), "--seeds", "1", "--json"])
    assert "random.mlp.fastest" in json.loads(capsys.readouterr().out)["figures"]


def test_a_file_of_something_else_is_refused(tmp_path):
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(BadSpec, match="no result"):
        read(tmp_path / "other.json")


@pytest.mark.parametrize("said", [["--values", "ones", "--out", "x.json"], []])
def test_nonsense_is_refused_before_a_gpu_is_looked_for(said):
    with pytest.raises(SystemExit):
        main(said)
