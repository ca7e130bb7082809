"""What an x-ray claims holds: its intervals cover what the best plan saves in jobs whose truth is known.

The truth is a card of ``model/truth`` (kernels are mixtures, voltage bends, part of static power is the clock tree,
each card differs), which our belief cannot represent; and GPT-3's stages as they were measured. The best plan of a
known job comes from a linear programme, not from our solver.
"""

import csv
import functools
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from joulewise.model import catalog
from joulewise.plan import trace, xray
from joulewise.plan.xray import Interval
from tests.plan.traced_job import Truth, fsdp
from tests.tiers import sample

CARDS = ("h200", "a100-sxm", "v100", "a40", "b300")
SEEDS = range(300, 310)  # not those that were looked at while the beliefs were chosen


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], list[tuple[str, Interval, float]]]:
    """By seed of a job: plans, what is said that they save, and what the best such plan saves."""
    path = tmp_path_factory.mktemp("traces") / "t.json"

    def compare(seed: int) -> list[tuple[str, Interval, float]]:
        model = catalog.load(CARDS[seed % len(CARDS)])
        truth = Truth(fsdp(seed, model), model, seed)
        path.write_text(json.dumps(truth.kineto(sync_events=bool(seed % 2), seed=seed)))
        return [
            (each.plan, each.saving, getattr(truth, each.plan)(each.slowdown))
            for each in xray.look([trace.read(path)]).savings
            if each.plan != "phased"  # one phase in steps as short as these: one clock
        ]

    return functools.cache(compare)


@pytest.mark.sampled
@pytest.mark.parametrize("seed", sample(SEEDS, 2, of="jobs that are x-rayed"))
def test_what_surely_could_be_saved_is_never_far_from_what_can(compared, seed) -> None:
    rows = compared(seed)
    assert len(rows) == 6
    assert all(said.low - saves <= 0.01 for _, said, saves in rows)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_intervals_cover_the_savings_of_known_jobs_on_cards_that_the_law_cannot_represent(compared) -> None:
    covered: Counter[str] = Counter()
    for seed in SEEDS:
        for plan, said, saves in compared(seed):
            covered[plan] += said.low - 1e-3 <= saves <= said.high + 1e-3
    # Nine in ten are meant: 27 of 30; 24 or fewer of 30 would come about once in ten such tests.
    assert covered["each_run"] >= 0.8 * 3 * len(SEEDS)
    assert covered["one_clock"] >= 0.8 * 3 * len(SEEDS)


@pytest.mark.parametrize(("profile", "gpu"), [("a100_sxm", "a100-sxm"), ("a40", "a40")])
def test_intervals_cover_the_measured_savings_of_a_gpt3_stage(data: Path, tmp_path, profile, gpu):
    """One clock for a stage's forward and backward, as measured over clocks; the trace says only what kernels ran."""
    clocks: dict[float, list[float]] = {}
    with (data / "perseus" / "stage_profile" / f"gpt3-175b+{profile}_bf16.csv").open() as file:
        for row in csv.DictReader(file):
            if row["stage"] == "0":
                time_s, energy_j = clocks.setdefault(float(row["frequency"]), [0.0, 0.0])
                clocks[float(row["frequency"])] = [time_s + float(row["time"]), energy_j + float(row["energy"])]
    seen_s, seen_j = clocks[max(clocks)]
    # By name: a transformer stage is matrix products and attention, with norms and activations between.
    shares = (("nvjet_gemm", 0.75), ("flash_fwd_kernel", 0.12), ("vectorized_layer_norm_kernel", 0.13))
    events, at_s = [], 0.0
    for step in range(4):
        for name, share in shares:
            args = {"device": 0, "stream": 7, "correlation": len(events)}
            times = {"ts": 1e6 * at_s, "dur": 1e6 * share * seen_s}
            events.append({"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "args": args, **times})
            at_s += share * seen_s
        del step
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"deviceProperties": [{"id": 0, "name": gpu}], "traceEvents": events}))
    found = xray.look([trace.read(path)], power_w=min(seen_j / seen_s, 1.15 * catalog.load(gpu).default_limit_w))
    for each in found.savings:
        if each.plan == "one_clock":
            allowed = [energy_j for time_s, energy_j in clocks.values() if time_s <= seen_s * (1 + each.slowdown)]
            saved = 1.0 - min(allowed) / seen_j
            assert each.saving.low - 0.005 <= saved <= each.saving.high + 0.005, (each, saved)
