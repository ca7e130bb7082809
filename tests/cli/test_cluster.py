"""``joulewise cluster simulate``: a trace becomes a table, JSON, pictures and a page; what is wrong one line."""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from joulewise.cli.cluster_amounts import energy_budget
from joulewise.core.errors import BadSpec
from tests.cli.clusters import ONE_NODE, SMALL, called, crowded, one_line, written
from tests.tiers import sample


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("trace") / "trace.csv", 14)


def simulated(capsys: pytest.CaptureFixture[str], *args: object) -> dict[str, Any]:
    assert called("simulate", *args, "--json") == 0
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    return said


def test_policies_stand_side_by_side_in_80_columns_and_nothing_else_is_said(
    trace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    policies = [f"--policy={name}" for name in ("priced", "fifo", "tiresias@0.8")]
    assert called("simulate", trace, *SMALL, *policies, "--energy-budget", "90kWh/day", "--power-cap", "8kW") == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert all(len(line) <= 80 for line in shown.out.splitlines())
    rows = [
        line.split() for line in shown.out.splitlines() if line.startswith((" priced ", " fifo ", " tiresias@0.8 "))
    ]
    assert len(rows) == 6  # in both tables
    assert "in time" in shown.out
    assert "there is no law of new-network" in shown.out


def test_json_has_every_policy_and_energies_add_up(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = simulated(capsys, trace, *SMALL, "--policy", "priced", "--policy", "fifo")
    assert (said["jobs"], said["gpus"], said["interrupted"]) == (14, {"a100-sxm": 16}, None)
    for each in said["policies"]:
        assert each["unfinished"] == 0
        assert each["median_s"] <= each["p99_s"]
        assert sum(each["parts"].values()) + each["after_j"] == pytest.approx(each["energy_j"])
        assert each["parts"]["jobs"] > each["parts"]["idle"] > 0
        assert each["deadlines"] == 7 >= each["deadlines_met"]
    ours, fifo = said["policies"]
    assert ours["mean_s"] < fifo["mean_s"]


def test_the_same_seed_gives_the_same_figures_and_another_others(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [simulated(capsys, trace, *SMALL, "--seed", seed)["policies"][0] for seed in (3, 3, 4)]
    for run in runs:
        del run["cpu_s"]
    assert runs[0] == runs[1] != runs[2]


def test_a_dearer_kwh_saves_energy_and_takes_time(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = simulated(capsys, trace, *SMALL, "--policy", "priced", "--policy", "priced@8h")
    free, dear = said["policies"]
    assert (free["family"], dear["family"]) == ("priced", "priced")
    assert dear["parts"]["jobs"] < 0.9 * free["parts"]["jobs"]
    assert dear["mean_s"] > free["mean_s"]


def test_fairness_is_paid_for_in_the_mean_and_changes_no_other_policy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = (crowded(tmp_path / "long.csv"), *ONE_NODE, "--policy", "priced", "--policy", "fifo")
    quick, fair = (simulated(capsys, *both, "--fairness", power)["policies"] for power in (0, 2))
    assert fair[0]["mean_s"] > quick[0]["mean_s"]
    assert fair[1]["mean_s"] == quick[1]["mean_s"]


def test_a_policy_that_leaves_jobs_undone_has_no_times_and_costs_the_others_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tight.csv"
    path.write_text("name,submitted_s,gpus,duration_s,model\na,0,8,3000,bert\nb,300,16,3000,gpt2\n")
    flags = (*SMALL, "--power-cap", "3.5kW", "--energy-budget", "30kWh/day")  # at full clock neither fits
    alone = simulated(capsys, path, *flags)["policies"][0]
    ours, fifo = simulated(capsys, path, *flags, "--policy", "priced", "--policy", "fifo")["policies"]
    assert (ours["unfinished"], fifo["unfinished"]) == (0, 2)
    assert (ours["energy_j"], ours["after_j"]) == (alone["energy_j"], 0)
    assert fifo["mean_s"] is fifo["median_s"] is fifo["p99_s"] is fifo["parts"] is None
    plot, page = tmp_path / "tight.svg", tmp_path / "tight.html"
    both = ("--policy", "priced", "--policy", "fifo", "--plot", plot, "--out", page)
    assert called("simulate", path, *flags, *both) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith(" fifo "))
    assert row.split()[1:4] == ["–", "–", "–"]
    assert plot.exists()
    assert page.exists()


def test_a_budget_and_a_cap_are_kept_and_slow_jobs_down(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    free = simulated(capsys, trace, *SMALL)["policies"][0]
    assert free["over_budget"] is None
    # What it spends in five hours must now last for a day.
    assert free["makespan_s"] < 5 * 3600
    kwh = f"{free['energy_j'] / 3.6e6:.3f}kWh/day"
    tight = simulated(capsys, trace, *SMALL, "--energy-budget", kwh, "--power-cap", "6kW")["policies"][0]
    assert tight["over_budget"] <= 0.01
    assert tight["over_cap"] < 0.1
    assert tight["mean_s"] > free["mean_s"]


def test_sleeping_nodes_save_what_idle_ones_draw(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load = ("--load", "0.2", "--policy", "fifo")
    asleep = simulated(capsys, trace, *SMALL, *load)["policies"][0]
    awake = simulated(capsys, trace, *SMALL, *load, "--no-power-off")["policies"][0]
    assert awake["boots"] == awake["parts"]["sleeping"] == 0
    assert asleep["energy_j"] < 0.95 * awake["energy_j"]


def test_a_load_stretches_the_gaps_and_keeps_the_time_to_each_deadline(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = simulated(capsys, trace, *SMALL, "--load", "0.1", "--policy", "fifo", "--size-error", "0")
    crowded = simulated(capsys, trace, *SMALL, "--load", "3", "--policy", "fifo", "--size-error", "0")
    assert said["policies"][0]["makespan_s"] > 5 * crowded["policies"][0]["makespan_s"]
    # Alone on what it asked for, a job takes as long as it did; probes and starts take a minute or two.
    assert said["policies"][0]["deadlines_met"] > crowded["policies"][0]["deadlines_met"]


def test_gpus_of_several_kinds_are_shared_out(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = simulated(capsys, trace, "--gpu", "sim:a100-sxm*8,h200*8")
    assert said["gpus"] == {"a100-sxm": 8, "h200": 8}
    assert said["policies"][0]["unfinished"] == 0
    assert any("h200 3.17" in line for line in said["assumed"])


def test_only_some_of_the_jobs(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulated(capsys, trace, *SMALL, "--jobs", 3, "--policy", "fifo")["jobs"] == 3
    assert simulated(capsys, trace, *SMALL, "--tenant", 1, "--policy", "fifo")["jobs"] == 5


OTHERS = ["powerflow@0.5", "srtf", "optimus", "gandiva+zeus", "pollux", "fifo+zeus@0.9"]


@pytest.mark.sampled
@pytest.mark.parametrize("policy", sample(OTHERS, 2, of="policies"))
def test_every_policy_ends_every_job(policy: str, trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = simulated(capsys, trace, *SMALL, "--jobs", 8, "--policy", policy)["policies"][0]
    assert (said["policy"], said["unfinished"]) == (policy, 0)


def test_pollux_and_philly_files_are_read_and_sized(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pollux = tmp_path / "workload.csv"
    rows = ("cifar10-0,0,cifar10,2,256", "ncf-1,60,ncf,1,2048", "bert-2,90,bert,4,48")
    pollux.write_text("\n".join(("name,time,application,num_replicas,batch_size", *rows)))
    said = simulated(capsys, pollux, *SMALL, "--policy", "fifo")
    assert any("no law of ncf" in line for line in said["assumed"])
    philly = tmp_path / "philly.csv"
    dated = ("2017-10-09 07:01:55,600,1,600,a", "2017-10-09 07:05:00,900,8,7200,b")
    philly.write_text("\n".join(("timestamp,duration,num_gpus,gpu_time,cluster", *dated)))
    said = simulated(capsys, philly, *SMALL, "--policy", "fifo")
    # Alone, at full clock, each runs for as long as it did; a start takes some seconds more and is at a whole minute.
    assert 600 <= said["policies"][0]["median_s"] - 150 <= 900


def test_a_picture_and_a_page_show_every_policy(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot, page = tmp_path / "cluster.svg", tmp_path / "cluster.html"
    flags = ("--policy", "fifo", "--policy", "fifo@0.8", "--power-cap", "8kW", "--plot", plot, "--out", page)
    assert called("simulate", trace, *SMALL, *flags) == 0
    capsys.readouterr()
    assert plot.read_text().lstrip().startswith("<?xml")
    text = page.read_text(encoding="utf-8")
    assert "http" not in re.sub(r'xmlns="[^"]*"', "", text)  # it asks nobody for anything
    assert text.count('class="gantt"') == 2
    assert all(f">job-{number}<" in text for number in range(14))
    assert "power cap" in text


def test_png_too(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot = tmp_path / "cluster.png"
    assert called("simulate", trace, *SMALL, "--jobs", 4, "--policy", "fifo", "--plot", plot) == 0
    capsys.readouterr()
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("--gpu", "sim:a100*4"), "asks for 8 GPUs, but the cluster has 4 of a100"),
        (("--gpu", "nvml:0"), "a simulated cluster is made of virtual GPUs"),
        (("--gpu", "sim:a100*12"), "12 GPUs of a100 are no whole number of nodes with 8"),
        (("--gpu", "sim:a100*x"), "no model with a count"),
        (("--gpu", "sim:a100*8,a100*8"), "names a model twice"),
        (("--gpu", "sim:none*8"), "no GPU model is called 'none'"),
        ((*SMALL, "--policy", "best"), "there are priced, powerflow, fifo"),
        ((*SMALL, "--policy", "priced+zeus"), "behind all but the first two"),
        ((*SMALL, "--policy", "tiresias@1.5"), "the clock of all jobs"),
        ((*SMALL, "--policy", "powerflow@x"), "the dJ/dE below which"),
        ((*SMALL, "--policy", "priced@cheap"), "is no time"),
        ((*SMALL, "--energy-budget", "0.5kWh/day"), "is below the 0.72 kWh that the cluster draws with nothing to do"),
        ((*SMALL, "--power-cap", "2kW", "--no-power-off"), "power cap of 2,000 W is below"),
        ((*SMALL, "--energy-budget", "5kWh"), "does not say for how long"),
        ((*SMALL, "--power-cap", "lots"), "is no power"),
        ((*SMALL, "--load", "0"), "--load 0 makes no sense"),
        ((*SMALL, "--size-error", "-1"), "--size-error -1 makes no sense"),
        ((*SMALL, "--fairness", "11"), "--fairness 11 makes no sense"),
        ((*SMALL, "--policy", "fifo", "--fairness", "1"), "--fairness is a term of priced alone"),
        ((*SMALL, "--out", "page.txt"), "is to be a page"),
        ((*SMALL, "--plot", "plot.gif"), "the name must end in"),
        ((*SMALL, "--decisions", "/nowhere/rounds.jsonl"), "cannot be written"),
    ],
)
def test_what_makes_no_sense_is_one_line(
    args: tuple[str, ...], why: str, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called("simulate", trace, *args) == 2
    assert why in one_line(capsys)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("when,gpus,duration_s\n0,1,60\n", "there is no column 'submitted_s'"),
        ("submitted_s,gpus,duration_s\n0,none,60\n", "line 2: column 'gpus' is 'none'"),
        ("submitted_s,gpus,duration_s\n", "holds no job"),
        ("submitted_s,gpus,duration_s,weight\n0,1,60,0\n", "column 'weight' is '0', which is not a number above 0"),
        ("submitted_s,gpus,model\n0,1,mystery\n", "add a column duration_s"),
    ],
)
def test_a_bad_trace_is_one_line(text: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    assert called("simulate", path, *SMALL) == 2
    assert why in one_line(capsys)


def test_jobs_that_all_come_at_once_have_no_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "once.csv"
    path.write_text("submitted_s,gpus,duration_s\n0,1,60\n0,2,60\n")
    assert called("simulate", path, *SMALL, "--load", "0.9") == 2
    assert "all submitted at once" in one_line(capsys)
    assert simulated(capsys, path, *SMALL)["policies"][0]["unfinished"] == 0


def test_budgets_are_read_as_people_write_them() -> None:
    assert energy_budget("--b", "500kWh/day") == (1.8e9, 86_400.0)
    assert energy_budget("--b", "3MWh / week") == (1.08e10, 604_800.0)
    assert energy_budget("--b", "20kWh/h") == (7.2e7, 3600.0)
    with pytest.raises(BadSpec, match="no energy"):
        energy_budget("--b", "many/day")


def test_ctrl_c_shows_the_policies_that_are_done_and_how_far_the_other_was(
    tmp_path: Path, in_terminal: Any, environ: dict[str, str]
) -> None:
    path = written(tmp_path / "long.csv", 1500, mean_gap_s=200.0)
    flags = ["--gpu", "sim:a100*64", "--policy", "fifo", "--policy", "priced"]
    command = [sys.executable, "-m", "joulewise", "cluster", "simulate", str(path), *flags]
    shown = in_terminal(command, columns=100, **environ)
    shown.read_until("priced")  # the bar of the second: the first is done
    shown.process.send_signal(signal.SIGINT)
    assert shown.finish() == 130
    said = shown.plain()
    assert re.search(r"joulewise: interrupted: priced had got to .* of the trace, \d+ of 1500 jobs ended", said)
    assert re.search(r"^ fifo +\d", said, re.MULTILINE)
    assert not re.search(r"^ priced +\d", said, re.MULTILINE)
    assert "Traceback" not in said
