"""bench.recurring plays ours by the same rules as the rest, and its record can be scored again from the files alone."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from bench import recurring
from bench.recurring_ours import Ours
from bench.recurring_play import play
from bench.recurring_traces import Truth, truths
from joulewise.core.knob import Setting
from joulewise.core.series import EpochCost

FIGURES = {
    *("regret_optimal_runs", "first20_cost", "cumulative_cost", "last5_over_oracle", "worst_recurrence"),
    *("losing_pairs", "energy_saving_min", "energy_saving_max", "zeus_regret_optimal_runs", "zeus_first20_cost"),
    *("zeus_cumulative_cost", "grid_cumulative_cost", "overlap4_regret", "transfer_regret"),
}


@pytest.fixture
def traces(tmp_path: Path) -> tuple[Path, list[Path]]:
    """One workload with a knee at 64 on two GPUs that nobody has heard of."""
    head = ("dataset", "network", "batch_size", "optimizer")
    job = ("cifar100", "shufflenetv2")
    train = tmp_path / "train.csv"
    with train.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*head, "learning_rate", "run", "target_metric", "target_epoch"])
        for size, epochs in ((32, 10), (64, 10), (256, 20), (1024, 60)):
            writer.writerows([*job, size, "adadelta", 0.1, run, 0.6, epochs + run] for run in range(4))
    power = []
    for gpu, slower in (("x8", 1.0), ("x9", 0.7)):
        path = tmp_path / f"summary_power_{gpu}.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow([*head, "power_limit", "time_per_epoch", "average_power"])
            for size in (32, 64, 256, 1024):
                for limit_w in (100, 200, 300):
                    epoch_s = slower * (20 + 600 / size) * (1 + 10 / limit_w)
                    writer.writerow([*job, size, "adadelta", limit_w, epoch_s, 0.9 * limit_w])
        power.append(path)
    return train, power


@pytest.mark.exhaustive
def test_every_figure_is_there_and_the_decisions_add_up_to_them(
    traces: tuple[Path, list[Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train, power = traces
    decisions = tmp_path / "decisions.jsonl"
    files = ["--train", str(train), "--power", *map(str, power)]
    assert recurring.main([*files, "--seeds", "3", "--no-drift", "--json", "--decisions", str(decisions)]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["figures"].keys() >= FIGURES
    assert told["pairs"].keys() == {"x8/cifar100", "x9/cifar100"}
    lines = [json.loads(line) for line in decisions.read_text("utf-8").splitlines()]
    (truth,) = truths(train, power[:1])
    for kind, name in (("ours", "regret_optimal_runs"), ("zeus", "zeus_regret_optimal_runs")):
        mine = [line for line in lines if (line["pair"], line["policy"], line["eta"]) == (truth.name, kind, 0.5)]
        assert {line["seed"] for line in mine} == {1, 2, 3}
        spent = sum(_cost(truth, line) for line in mine) / 3
        regret = spent / truth.oracle_cost - truth.recurrences
        assert regret == pytest.approx(told["pairs"][truth.name][name])


def _cost(truth: Truth, line: dict[str, object]) -> float:
    """What a run cost by the files: its epochs at its setting, the first at the mean of all where it was profiled."""
    size, setting, epochs = line["batch_size"], line["setting"], line["epochs"]
    assert isinstance(size, int)
    assert isinstance(epochs, int)
    assert isinstance(setting, dict)
    each = truth.epoch_cost(truth.point(size, Setting(**setting)))
    return epochs * each + (truth.cost(*truth.probing(size)) - each if line["profiled"] else 0.0)


def test_ours_is_shown_no_profile_that_it_has_not_paid_for() -> None:
    truth = Truth(
        *("gpu", "job", 32, 10, 300.0),
        epochs={16: (9,), 32: (3,), 64: (2,)},
        profiles={size: (EpochCost(10.0, 3000.0, Setting(power_limit_w=300.0)),) for size in (16, 32, 64)},
    )
    played = play(truth, Ours(truth.job, truth.platform), 1, recurrences=20)
    known: set[int] = set()
    for each in played.tries:
        if each.epochs:
            assert each.profiled == (each.batch_size not in known)
            known.add(each.batch_size)
    assert len(played.finals()) == 20
