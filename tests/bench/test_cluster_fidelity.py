"""bench.cluster fidelity: the replays give the published figures, and wrong input is said to be wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import cluster_fidelity
from bench.cluster_fidelity_apps import Application, packed
from bench.cluster_fidelity_elasticflow import Arrivals, replay_tiresias
from bench.cluster_fidelity_gandiva import replay_gandiva
from joulewise.cluster.traces import TraceJob


def job(name: str, submitted_s: float, gpus: int, duration_s: float) -> TraceJob:
    return TraceJob(name, submitted_s, gpus, duration_s)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_every_published_figure_is_met_to_its_last_digit(
    data: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    decisions = tmp_path / "decisions.jsonl"
    assert cluster_fidelity.main(["--json", "--data", str(data), "--decisions", str(decisions)]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])["figures"]
    assert figures["replays"] == 20
    # Given to a tenth of a second or to a hundredth, of thousands.
    for name in ("tiresias_w6_error", "optimus_w6_error", "pollux_worst_error", "elasticflow_worst_error"):
        assert figures[name] < 1e-5, name
    rows = [json.loads(line) for line in decisions.read_text(encoding="utf-8").splitlines()]
    assert [len(row["taken_s"]) for row in rows if row["trace"] == "195job@128"] == [195, 195]


def test_without_data_the_way_out_is_said(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JOULEWISE_DATA", raising=False)
    for arguments in ([], ["--data", str(tmp_path)]):
        assert cluster_fidelity.main(arguments) == 2
        assert "set JOULEWISE_DATA" in capsys.readouterr().err


def test_a_batch_is_cut_into_passes_that_fit_and_one_gpu_accumulates(data: Path) -> None:
    bert = Application(data / "cluster" / "pollux" / "traces" / "bert")
    assert (bert.first_batch, bert.min_local) == (12, 4)
    assert bert.local(12, 1).extra == 0
    assert bert.local(12, 1, always_accumulate=True).extra == 1
    cut = bert.local(384, 16)
    assert 16 * cut.size * (cut.extra + 1) == 384
    assert bert.iteration_s((2, 4), cut) == bert.iteration_s((4, 2), cut)
    assert packed(10, 4) == (4, 4, 2)


def test_arrivals_of_one_slot_come_together_but_the_last_event_stays() -> None:
    arrivals = Arrivals([job(str(at_s), at_s, 1, 100.0) for at_s in (0.0, 10.0, 20.0, 90.0)])
    assert [one.name for one in arrivals.pop(0.0)] == ["0.0"]
    arrivals.merge(60.0)
    assert [one.name for one in arrivals.pop(60.0)] == ["10.0", "20.0"]
    arrivals.merge(120.0)
    assert arrivals.next_s == 90.0


@pytest.mark.parametrize("replay", [replay_tiresias, replay_gandiva])
def test_a_job_alone_takes_its_duration_and_no_more_than_its_start(replay: object) -> None:
    taken_s = replay([job("a", 1000.0, 8, 600.0)], 64, 60)  # type: ignore[operator]
    assert 600.0 <= taken_s["a"] <= 610.0
