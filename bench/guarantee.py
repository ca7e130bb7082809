"""Does the guarantee hold on real step times, and what does it cost?

*False acceptance*: jobs whose candidate is truly 1.00–1.05 × as slow as the bound allows are replayed from recorded
H200 steps (``bench/results/h200/steps``; a circular block bootstrap, so that steps hang together as they did), in pairs
as the tuner makes them, through the guard's own bets (what the guard gives up early it would not keep). The bar is 5 %.
``false_accept_on_bound``: exactly on the bound, the worst case. ``false_accept_added``: there, but the candidate adds
the same seconds to both places of a pair instead of stretching them, which the guard's proof does not cover.
``false_accept_job``: a job tries three bad candidates in a row on one budget. Beside them, on the same pairs: a normal
mixture with the running variance plugged in, and a t-test looked at after each pair.

*Unequal effects*: a candidate that costs half the bound in nine of ten pairs and so much in the tenth that the mean is
1.2 × the bound, which the guard's proof does not cover: how often it is kept (``mixed_kept``), after at least one such
pair was seen (``mixed_kept_seen``), and still held after a hundred windows more (``mixed_held``).

*Power*: how often, and after how many pairs and steps, candidates of 0 and half the bound are kept.

*Proof*: how often the 95 % interval of the slowdown covers the truth, from 5, 10 and 20 windows of recorded steps.

*Change*: steps until shifts of 1, 2, 3σ are found, and false alarms in 70,000 steps, on autocorrelated heavy-tailed
steps (``model/jitter``); alarms on the recordings themselves, of which one holds a true shift.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from bench import guarantee_change
from bench.recorded_steps import FOLDER, Array, Recording, load, pair_means
from joulewise.core.block import Block, Role
from joulewise.core.event import Seen
from joulewise.core.knob import DEFAULT, Setting
from joulewise.tune.guard import AlphaBudget, Bets, SlowdownTest, Watch, candidate_first
from joulewise.tune.lengths import Lengths
from joulewise.tune.proof import prove

BOUNDS = (0.01, 0.02, 0.05)
MOST_PAIRS = 40
_RUN = 4  # pairs in a row that are as recorded
_LEAST_LOOKED = 4  # pairs before the normal mixture may decide (its σ is estimated)


@dataclass(frozen=True, slots=True)
class Pairs:
    """Log ratios of replayed pairs (replays × pairs), and how many steps a pair has."""

    ratios: Array
    steps: int

    @property
    def error(self) -> float:
        """What blocks of this job would claim a pair errs by."""
        return float(np.std(self.ratios - self.ratios.mean(axis=1, keepdims=True)))


def coins(replays: int, pairs: int, seed: int, trial: int = 0) -> npt.NDArray[np.bool_]:
    """Whether the candidate comes first, for each replay and pair, by the guard's own coin."""
    return np.array([[candidate_first(seed + job, trial, pair) for pair in range(pairs)] for job in range(replays)])


def replay(
    recording: Recording,
    slowdown: Array,
    first: npt.NDArray[np.bool_],
    rng: np.random.Generator,
    *,
    added: bool = False,
) -> Pairs:
    """Pairs of a job under a candidate of a given slowdown (one for each replay)."""
    work, least_s = Lengths().pair
    length = max(int(work), math.ceil(least_s / recording.usual_s))
    replays, pairs = first.shape
    one, other = pair_means(recording.steps_s, length=length, pairs=pairs, replays=replays, run=_RUN, rng=rng)
    candidate, reference = np.where(first, one, other), np.where(first, other, one)
    extra = (one + other) / 2 if added else candidate
    candidate = candidate + slowdown[:, None] * extra
    return Pairs(np.log(candidate / reference), 2 * length)


def guarded(ratios: Array, bound: float, alpha: float, error: float) -> tuple[bool, int]:
    """One job through the guard: whether the candidate was kept, and after how many pairs it was decided."""
    test = SlowdownTest(bound, alpha, most_pairs=ratios.size)
    for ratio in ratios.tolist():
        test.add(ratio, error)
        if test.verdict.kept is not None:
            break
    return bool(test.verdict.kept), test.pairs


def ever_kept(ratios: Array, bound: float, alpha: float) -> npt.NDArray[np.bool_]:
    """Whether the guard's bets ever keep each job's candidate: its own arithmetic, on all jobs at once.

    Nothing is given up early here, which the guard does: it keeps no more than this.
    """
    bets = Bets(np.full(len(ratios), math.log1p(bound)))
    kept = np.zeros(len(ratios), dtype=bool)
    for pair in ratios.T:
        bets.add(pair)
        kept |= bets.below >= math.log(1 / alpha)
    return kept


def plugged_in(ratios: Array, bound: float, alpha: float = 0.1) -> npt.NDArray[np.bool_]:
    """Whether a normal mixture with the running variance plugged in ever keeps (α = 0.1: 5 % one-sided)."""
    count = np.arange(1, ratios.shape[1] + 1)
    mean = np.cumsum(ratios, axis=1) / count
    variance = np.maximum(np.cumsum(ratios**2, axis=1) / count - mean**2, 0.0) * count / np.maximum(count - 1, 1)
    variance = np.maximum(variance, 1e-10)
    rho = 8 * variance / (2 * math.log(1 / alpha) + math.log(1 + 2 * math.log(1 / alpha)))
    total = count * variance + rho
    radius = np.sqrt(total * np.log(total / (rho * alpha**2))) / count
    kept = (mean + radius <= math.log1p(bound)) & (count >= _LEAST_LOOKED)
    return np.asarray(kept.any(axis=1))


def peeked(ratios: Array, bound: float, alpha: float = 0.05) -> npt.NDArray[np.bool_]:
    """Whether a one-sided t-test, looked at after each pair from the third on, ever keeps."""
    count = np.arange(1, ratios.shape[1] + 1)
    mean = np.cumsum(ratios, axis=1) / count
    variance = np.maximum(np.cumsum(ratios**2, axis=1) / count - mean**2, 0.0) * count / np.maximum(count - 1, 1)
    width = special.stdtrit(np.maximum(count - 1, 1), 1 - alpha) * np.sqrt(variance / count)
    return np.asarray(((mean + width <= math.log1p(bound)) & (count >= 3)).any(axis=1))


def false_acceptance(
    *,
    replays: int = 10_000,
    alpha: float = 0.05,
    bounds: Sequence[float] = BOUNDS,
    seed: int = 0,
    folder: Path = FOLDER,
) -> dict[str, float]:
    """How often bad candidates are kept: ``replays`` jobs for each bound, spread over all recordings.

    ``false_accept`` is the worst of the bounds; each bound's own, the baselines' and the harder cases' stand beside.
    """
    recordings = load(folder)
    rng = np.random.default_rng(seed)
    each = -(-replays // len(recordings))
    first = coins(each, MOST_PAIRS, seed)
    kept: dict[str, list[float]] = {
        name: [] for name in ("false_accept", "on_bound", "added", "mixture", "mixture_on", "peeked", "job")
    }
    for bound in bounds:
        counts = dict.fromkeys(kept, 0.0)
        jobs = 0
        for recording in recordings:
            slowdown = bound * rng.uniform(1.0, 1.05, each)
            pairs = replay(recording, slowdown, first, rng)
            on_bound = replay(recording, np.full(each, bound), first, rng)
            added = replay(recording, np.full(each, bound), first, rng, added=True)
            counts["false_accept"] += int(ever_kept(pairs.ratios, bound, alpha).sum())
            counts["on_bound"] += int(ever_kept(on_bound.ratios, bound, alpha).sum())
            counts["added"] += int(ever_kept(added.ratios, bound, alpha).sum())
            counts["mixture"] += int(plugged_in(pairs.ratios, bound).sum())
            counts["mixture_on"] += int(plugged_in(on_bound.ratios, bound).sum())
            counts["peeked"] += int(peeked(pairs.ratios, bound).sum())
            # Three candidates in a row on one budget: rows i, i + third and i + 2·third are one job's.
            budget, third = AlphaBudget(alpha), each // 3
            tries = [pairs.ratios[place * third : (place + 1) * third] for place in range(3)]
            kept_any = np.array([ever_kept(rows, bound, budget.grant()) for rows in tries]).any(axis=0)
            counts["job"] += int(kept_any.sum())
            jobs += third
        for name, count in counts.items():
            kept[name].append(count / (jobs if name == "job" else each * len(recordings)))
    figures = {"false_accept": max(kept["false_accept"])}
    for bound, share in zip(bounds, kept["false_accept"], strict=True):
        figures[f"false_accept_{100 * bound:g}pct"] = share
    figures["false_accept_on_bound"] = max(kept["on_bound"])
    figures["false_accept_added"] = max(kept["added"])
    figures["false_accept_job"] = max(kept["job"])
    figures["mixture_false_accept"] = max(kept["mixture"])
    figures["mixture_false_accept_on_bound"] = max(kept["mixture_on"])
    figures["peeked_false_accept"] = max(kept["peeked"])
    return figures


def unequal(*, replays: int = 300, bound: float = 0.02, seed: int = 4) -> dict[str, float]:
    """What becomes of a candidate whose pairs rarely lose much; normal noise of an eighth of the bound a pair."""
    rng = np.random.default_rng(seed)
    rare, usual = 0.1, 0.5 * bound
    much = (1.2 * bound - (1 - rare) * usual) / rare
    kept = seen = kept_seen = held = 0
    for _ in range(replays):
        hit = rng.random(MOST_PAIRS + 100) < rare
        ratios = np.log1p(np.where(hit, much, usual)) + bound / 8 * rng.standard_normal(hit.size)
        accepted, pairs = guarded(ratios[:MOST_PAIRS], bound, 0.05, bound / 8)
        was_seen = bool(hit[:pairs].any())
        kept, seen, kept_seen = kept + accepted, seen + was_seen, kept_seen + (accepted and was_seen)
        watch, fine = Watch(bound), accepted
        for ratio in ratios[pairs : pairs + 100].tolist():
            watch.add(ratio, bound / 8)
            fine = fine and not watch.violated
        held += fine
    return {
        "mixed_kept": kept / replays,
        "mixed_kept_seen": kept_seen / seen if seen else math.nan,
        "mixed_held": held / replays,
    }


def power(*, replays: int = 100, seed: int = 1, folder: Path = FOLDER) -> list[dict[str, Any]]:
    """For each recording and bound: how often a harmless candidate and one at half the bound are kept, and how soon."""
    rng = np.random.default_rng(seed)
    first = coins(replays, MOST_PAIRS, seed)
    rows = []
    for recording in load(folder):
        for bound in BOUNDS:
            row: dict[str, Any] = {"program": recording.name, "bound": bound}
            for name, share in (("none", 0.0), ("half", 0.5)):
                pairs = replay(recording, np.full(replays, share * bound), first, rng)
                found = [guarded(each, bound, 0.05, pairs.error) for each in pairs.ratios]
                needed = [count for kept, count in found if kept]
                row["pair_error"] = pairs.error
                row[f"kept_{name}"] = len(needed) / replays
                row[f"pairs_{name}"] = float(np.median(needed)) if needed else None
                row[f"steps_{name}"] = row[f"pairs_{name}"] * pairs.steps if needed else None
            rows.append(row)
    return rows


def pairs_by_margin(*, replays: int = 300, seed: int = 2) -> dict[str, float]:
    """Median pairs until kept for normal noise and a margin of 2, 1, ½ standard deviations of a pair."""
    rng = np.random.default_rng(seed)
    found = {}
    for margin, name in ((2.0, "2sd"), (1.0, "1sd"), (0.5, "half_sd")):
        ratios = math.log1p(0.02) - 0.004 * (margin + rng.standard_normal((replays, 200)))
        decided = [guarded(row, 0.02, 0.05, 0.004) for row in ratios]
        found[f"pairs_{name}"] = float(np.median([count if kept else 200 for kept, count in decided]))
    return found


def coverage(*, replays: int = 2_000, seed: int = 3, folder: Path = FOLDER) -> dict[str, float]:
    """How often the proof's 95 % interval of the slowdown covers the truth, by number of windows; all recordings."""
    rng = np.random.default_rng(seed)
    recordings = load(folder)
    each = -(-replays // len(recordings))
    found = {}
    for windows in (5, 10, 20):
        inside = 0
        for recording in recordings:
            slowdown = rng.uniform(-0.01, 0.05, each)
            # Three places: held, window, held; a pair's first place, the second, and the next pair's first.
            one, other = pair_means(
                recording.steps_s, length=_length(recording), pairs=2 * windows, replays=each, run=2, rng=rng
            )
            for job in range(each):
                seen = _windows(one[job] * (1 + slowdown[job]), other[job], slowdown[job], windows)
                change = prove(seen).held_time
                inside += change is not None and change.low <= slowdown[job] <= change.high
        found[f"coverage_{windows}"] = inside / (each * len(recordings))
    return found


def _length(recording: Recording) -> int:
    work, least_s = Lengths().pair
    return max(int(work), math.ceil(least_s / recording.usual_s))


def _windows(held_s: Array, other_s: Array, slowdown: float, windows: int) -> list[Seen]:
    """HOLD, PROOF, HOLD, and so on, from the unit times of the places; energy is as time, and not looked at."""
    seen, now_s = [], 0.0
    setting = Setting(sm_mhz=1500)
    for index in range(windows):
        places = (
            (Role.HOLD, held_s[2 * index], setting),
            (Role.PROOF, other_s[2 * index], DEFAULT),
            (Role.HOLD, held_s[2 * index + 1], setting),
            (Role.HOLD, other_s[2 * index + 1] * (1 + slowdown), setting),
        )
        for role, unit_s, chosen in places:
            block = Block(chosen, now_s, now_s + 1.0, 1.0 / float(unit_s), 1.0, 300.0, 1.0, 0.01)
            seen.append(Seen(now_s + 1.0, role, block))
            now_s += 1.0
    return seen


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; exit status 2 and one line where there are no recordings."""
    parser = argparse.ArgumentParser(prog="python -m bench.guarantee", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=Path, default=FOLDER, metavar="DIR", help="recordings (default: the H200's)")
    parser.add_argument("--replays", type=int, default=10_000, help="jobs for each bound (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help='end with one object {"figures": {...}}')
    options = parser.parse_args(arguments)
    try:
        figures = false_acceptance(replays=options.replays, seed=options.seed, folder=options.steps)
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    _say("false acceptance, at most 5 %", figures)
    few = max(5, options.replays // 100)
    mixed = unequal(replays=3 * few)
    _say("a candidate whose pairs rarely lose much", mixed)
    margins = pairs_by_margin(replays=3 * few)
    _say("pairs until kept, by margin", margins)
    rows = power(replays=few, folder=options.steps)
    for row in rows:
        print("  " + "  ".join(f"{key} {_short(value)}" for key, value in row.items()))
    covered = coverage(replays=20 * few, folder=options.steps)
    _say("intervals of the proof that cover the truth", covered)
    changed = guarantee_change.figures(options.steps, replays=few)
    _say("change detection", changed)
    kept = {f"kept_{name}": float(np.mean([row[f"kept_{name}"] for row in rows])) for name in ("none", "half")}
    if options.json:
        print(json.dumps({"figures": {**figures, **mixed, **margins, **kept, **covered, **changed}}))
    return 0


def _say(title: str, figures: dict[str, float]) -> None:
    print(title)
    for name, value in figures.items():
        print(f"  {name} {_short(value)}")


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
