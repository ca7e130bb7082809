"""The bench of caps: its quick days end with all figures, and its figures are the worst of its rows."""

from __future__ import annotations

import json
import math

import pytest

from bench import cluster, cluster_cap, cluster_cap_day
from bench.cluster_cap_day import RIGHT, Load, Step, Task
from bench.cluster_cap_nodes import node_figures
from joulewise.cluster.purse import Purse


@pytest.mark.exhaustive
def test_the_quick_days_end_with_all_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert cluster.main(["cap", "--only", "days", "--quick", "--json"]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    figures = found["figures"]
    assert figures["budget_overrun"] == 0.0
    assert figures["budget_used"] >= 0.97
    assert figures["preemptions_20"] == 0
    assert figures["unfinished"] == 0
    assert 0 < figures["jct_cost_20"] < figures["jct_cost_40"]
    assert [row["step"] for row in found["steps"]] == ["20", "25", "40"]
    assert all(row["complied_s"] == 0.0 for row in found["steps"])  # right beliefs: in the same moment
    assert "kept after 0 s" in said.err


def test_a_cut_finds_the_cluster_busy_and_is_the_same_again() -> None:
    load = Load(40, seed=4)
    free = cluster_cap_day.play(load, RIGHT, Purse())
    at_s, drawn_w = cluster_cap_day.busy_moment(free.outcome)
    assert at_s % 60.0 == 30.0
    assert drawn_w > 0.7 * max(moment.watts for moment in free.outcome.series)
    assert cluster_cap_day.busy_moment(free.outcome) == (at_s, drawn_w)
    assert Step(0.25, ramp=True).name == "25"
    assert Task(load, RIGHT).load.name == "made-up 4"


def row(share: float, complied_s: float | None, overshoot_kj: float) -> dict[str, float | None]:
    return {
        "share": share,
        "mean_compliance_s": complied_s,
        "overshoot_kj": overshoot_kj,
        "above_after_w": 0.0,
        "preemptions": 0,
        "after_w": 90.0,
        "cap_w": 100.0,
    }


def test_a_nodes_figure_is_that_of_the_slowest_cut_and_one_never_kept_is_no_number() -> None:
    figures = node_figures([row(0.2, 0.5, 1.0), row(0.2, 0.9, 0.5), row(0.4, None, 3.0)])
    assert figures["compliance_s_20"] == 0.9
    assert math.isnan(figures["compliance_s_40"])
    assert (figures["overshoot_kj_20"], figures["overshoot_kj"]) == (1.0, 3.0)
    assert figures["cap_used"] == pytest.approx(0.9)


def test_without_public_traces_made_up_jobs_are_played_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JOULEWISE_DATA", raising=False)
    lines: list[str] = []
    tasks = cluster_cap._tasks(False, lines.append)
    assert {task.load.trace for task in tasks} == {None}
    assert lines[0].startswith("no public traces: JOULEWISE_DATA is not set")
