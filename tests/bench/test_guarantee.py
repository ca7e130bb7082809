"""The bench of the guarantee: its replays are what it says, and its figures are there."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest

from bench import guarantee
from bench.recorded_steps import Recording, clean, load, pair_means


def test_steps_hold_no_evaluation_no_stall_and_no_warm_up(tmp_path: Path) -> None:
    path = tmp_path / "made.steps.csv.gz"
    rows, now_s = ["end_s,kind"], 0.0
    for index in range(200):
        now_s += 5.0 if index < 3 else 0.1
        rows.append(f"{now_s:.6f},step")
        if index % 20 == 19:
            now_s += 2.0
            rows.append(f"{now_s:.6f},evaluation")
        if index == 150:
            now_s += 1.0  # a stall nobody marked falls into the next step
    path.write_bytes(gzip.compress("\n".join(rows).encode()))
    steps_s = clean(path)
    assert steps_s.size == 200 - 1 - 5 - 1
    assert steps_s == pytest.approx(0.1, abs=1e-6)


def test_replayed_places_are_neighbours_as_recorded() -> None:
    steps_s = np.arange(1.0, 1001.0)
    first, second = pair_means(steps_s, length=10, pairs=6, replays=50, run=3, rng=np.random.default_rng(0))
    gaps = (second - first)[np.abs(second - first) < 100]  # those that do not go round the end
    assert gaps == pytest.approx(10.0)
    assert first[:, 1] - first[:, 0] == pytest.approx(
        np.where(first[:, 1] > first[:, 0], 20.0, first[:, 1] - first[:, 0])
    )
    assert first.shape == (50, 6)


def test_a_place_longer_than_the_recording_goes_round_it() -> None:
    first, second = pair_means(
        np.array([1.0, 2.0, 3.0]), length=7, pairs=1, replays=20, run=1, rng=np.random.default_rng(0)
    )
    assert set(np.round(7 * np.concatenate([first, second]).ravel(), 6)) == {13.0, 14.0, 15.0}


def test_a_replayed_candidate_is_as_slow_as_told() -> None:
    recording = Recording("even", np.full(500, 0.1))
    coins = guarantee.coins(4, 5, 0)
    rng = np.random.default_rng(0)
    stretched = guarantee.replay(recording, np.full(4, 0.03), coins, rng)
    added = guarantee.replay(recording, np.full(4, 0.03), coins, rng, added=True)
    assert stretched.ratios == pytest.approx(math.log(1.03))
    assert added.ratios == pytest.approx(math.log(1.03))
    assert stretched.steps == 20


def test_the_baselines_keep_what_is_clearly_good_and_refuse_what_is_clearly_bad() -> None:
    rng = np.random.default_rng(0)
    noise = 0.001 * rng.standard_normal((50, 20))
    for baseline in (guarantee.plugged_in, guarantee.peeked):
        assert baseline(noise, 0.02).all()
        assert not baseline(noise + 0.1, 0.02).any()


def test_false_acceptance_is_within_its_bound_on_recorded_steps() -> None:
    figures = guarantee.false_acceptance(replays=3000)
    assert set(figures) >= {"false_accept", "false_accept_1pct", "false_accept_job", "peeked_false_accept"}
    assert figures["false_accept"] <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 3000)
    assert figures["peeked_false_accept"] > 2 * figures["false_accept"]


def test_recordings_are_there() -> None:
    assert len(load()) >= 12


def test_without_recordings_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert guarantee.main(["--steps", str(tmp_path)]) == 2
    assert "no *.steps.csv.gz" in capsys.readouterr().err


def test_what_the_guard_keeps_its_bets_keep() -> None:
    ratios = math.log1p(0.02) + 0.01 * np.random.default_rng(1).standard_normal((60, 30)) - 0.005
    kept = guarantee.ever_kept(ratios, 0.02, 0.05)
    through = np.array([guarantee.guarded(row, 0.02, 0.05, 0.01)[0] for row in ratios])
    assert through.sum() > 20
    assert not (through & ~kept).any()


@pytest.mark.exhaustive
def test_it_ends_with_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarantee.main(["--replays", "60", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])["figures"]
    assert figures["coverage_5"] > 0.8
    assert {"false_accept", "pairs_1sd", "delay_2sd_heavy", "alarms_vit_shift"} <= set(figures)
