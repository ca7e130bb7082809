"""The guard: exact by enumeration, within its error under nasty noise, quick where the margin is clear."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from joulewise.core.block import Block, Rung
from joulewise.core.knob import DEFAULT, Setting
from joulewise.tune.guard import AlphaBudget, Bets, Debt, SlowdownTest, Watch, candidate_first, compare, line_of

LIMIT = math.log1p(0.02)
LOW = Setting(sm_mhz=1200)


def block(
    unit_s: float,
    *,
    seconds: float = 10.0,
    setting: Setting = LOW,
    error: float = 0.0,
    phase: str = "",
    rung: Rung = Rung.STEPS,
) -> Block:
    return Block(setting, 0.0, seconds, seconds / unit_s, seconds, 300.0 * seconds, 1.0, error, phase, rung)


def all_signs(count: int) -> np.ndarray:
    return np.array(list(itertools.product((-1.0, 1.0), repeat=count)))


# The test is exact.


@given(
    sizes=st.lists(st.floats(1e-6, 10.0), min_size=1, max_size=8),
    beyond=st.floats(0.0, 1.0),
    alpha=st.sampled_from([0.05, 0.1, 0.3]),
)
@settings(max_examples=60, deadline=None)
def test_over_all_draws_of_the_coin_the_mean_wealth_of_a_bad_candidate_is_at_most_one(
    sizes: list[float], beyond: float, alpha: float
) -> None:
    signs = all_signs(len(sizes))
    bets = Bets(np.full(len(signs), LIMIT))
    reached = np.zeros(len(signs), dtype=bool)
    for index, size in enumerate(sizes):
        bets.add(LIMIT + beyond + signs[:, index] * size)
        assert np.mean(np.exp(bets.below)) <= 1 + 1e-9
        reached |= bets.below >= math.log(1 / alpha)
    assert reached.mean() <= alpha


@given(sizes=st.lists(st.floats(1e-6, 10.0), min_size=1, max_size=8))
@settings(max_examples=30, deadline=None)
def test_exactly_on_the_bound_the_game_is_fair_on_both_sides(sizes: list[float]) -> None:
    signs = all_signs(len(sizes))
    bets = Bets(np.full(len(signs), LIMIT))
    for index, size in enumerate(sizes):
        bets.add(LIMIT + signs[:, index] * size)
    assert np.mean(np.exp(bets.below)) == pytest.approx(1.0)
    assert np.mean(np.exp(bets.above)) == pytest.approx(1.0)


def noises(rng: np.random.Generator, jobs: int, pairs: int) -> dict[str, np.ndarray]:
    """Noise of the two places of every pair, (jobs, pairs, 2)."""
    shape = (jobs, pairs, 2)
    steps = rng.standard_normal((jobs, 2 * pairs))
    correlated = np.zeros_like(steps)
    for index in range(1, 2 * pairs):
        correlated[:, index] = 0.9 * correlated[:, index - 1] + steps[:, index]
    drift = np.linspace(0.0, 30.0, 2 * pairs)[None, :] + 0.1 * steps
    return {
        "heavy tails": rng.standard_cauchy(shape),
        "skewed": rng.exponential(1.0, shape) ** 2,
        "autocorrelated": correlated.reshape(shape),
        "drift": drift.reshape(shape),
        "growing": rng.standard_normal(shape) * np.geomspace(0.01, 10.0, pairs)[None, :, None],
        "first place slower": rng.standard_normal(shape) * 0.1 + np.array([1.0, 0.0]),
    }


@pytest.mark.parametrize("slowdown", [0.02, 0.0205, 0.021])
def test_false_acceptance_stays_below_alpha_whatever_the_noise(slowdown: float) -> None:
    rng = np.random.default_rng(1)
    jobs, pairs = 4000, 30
    for name, noise in noises(rng, jobs, pairs).items():
        coin = rng.random((jobs, pairs)) < 0.5
        first, second = 0.01 * noise[..., 0], 0.01 * noise[..., 1]
        ratios = math.log1p(slowdown) + np.where(coin, first - second, second - first)
        bets, kept = Bets(np.full(jobs, LIMIT)), np.zeros(jobs, dtype=bool)
        for pair in range(pairs):
            bets.add(ratios[:, pair])
            kept |= bets.below >= math.log(20)
        assert kept.mean() <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / jobs), name


def test_the_test_and_the_bets_are_the_same_arithmetic() -> None:
    rng = np.random.default_rng(2)
    test, bets = SlowdownTest(0.02), Bets(np.array([LIMIT]))
    for ratio in rng.normal(0.01, 0.02, 12):
        test.add(ratio)
        bets.add(ratio)
        assert math.log(test.wealth) == pytest.approx(float(bets.below[0]))


def test_equal_pairs_exactly_on_the_bound_say_nothing() -> None:
    test = SlowdownTest(0.02)
    for _ in range(5):
        test.add(LIMIT)
    assert test.wealth == pytest.approx(1.0)


# It is quick.


@pytest.mark.parametrize(("margin", "most"), [(3.0, 5), (2.0, 6), (1.0, 10), (0.5, 40)])
def test_pairs_needed_fall_with_the_margin(margin: float, most: int) -> None:
    rng = np.random.default_rng(3)
    needed = []
    for _ in range(150):
        test = SlowdownTest(0.02, most_pairs=120)
        while test.verdict.kept is None:
            test.add(LIMIT + 0.004 * (rng.standard_normal() - margin), 0.004)
        needed.append(test.pairs if test.verdict.kept else 999)
    assert np.median(needed) <= most


def test_five_pairs_are_the_least_that_can_prove_anything_at_five_per_cent() -> None:
    test = SlowdownTest(0.02)
    for _ in range(4):
        test.add(-0.1)
        assert test.verdict.kept is None
    test.add(-0.1)
    assert test.verdict.kept is True


def test_a_clear_violation_ends_the_test_after_two_pairs() -> None:
    test = SlowdownTest(0.02)
    test.add(math.log1p(0.05), 0.004)
    assert test.verdict.kept is None
    test.add(math.log1p(0.05), 0.004)
    assert test.verdict.kept is False
    assert "slower than +2.0%" in test.verdict.reason


@pytest.mark.parametrize(("stalled", "kept"), [(0.08, True), (1.0, None)])
def test_one_stalled_pair_alone_ends_nothing(stalled: float, kept: bool | None) -> None:
    """… and is kept in spite of once the mean says so too."""
    test = SlowdownTest(0.02)
    test.add(stalled, 0.004)
    for _ in range(12):
        test.add(0.0, 0.004)
    assert test.verdict.kept is kept


MIXED = (0.01, 0.15)
"""What nine and one of ten pairs lose: 2.4 % on average."""


def mixed(rng: np.random.Generator) -> float:
    return math.log1p(MIXED[int(rng.random() < 0.1)]) + 0.003 * float(rng.standard_normal())


def test_what_rarely_loses_much_is_not_kept_once_that_was_seen() -> None:
    rng = np.random.default_rng(21)
    seen = kept = 0
    for _ in range(300):
        test, rare = SlowdownTest(0.02, 0.025, most_pairs=40), False
        while test.verdict.kept is None:
            ratio = mixed(rng)
            rare |= ratio > 0.1
            test.add(ratio, 0.003)
        seen, kept = seen + rare, kept + (rare and bool(test.verdict.kept))
    assert 0 < kept <= 0.10 * seen  # of what was never seen nothing can be said: for that the watch goes on


def test_what_rarely_loses_much_is_sent_back_by_its_mean() -> None:
    rng = np.random.default_rng(22)
    sent_back = 0
    for _ in range(100):
        watch = Watch(0.02)
        for _ in range(150):
            watch.add(mixed(rng), 0.003)
            if watch.violated:
                sent_back += 1
                break
    assert sent_back >= 75


def test_the_mean_costs_hardly_any_power_where_all_work_is_alike() -> None:
    rng = np.random.default_rng(23)
    decided = []
    for _ in range(200):
        test = SlowdownTest(0.02)
        while test.wealth < 20.0 and test.pairs < 200:
            test.add(LIMIT - 0.004 * (1.0 + float(rng.standard_t(4)) / math.sqrt(2.0)))
        decided.append(test.verdict.kept)
    assert decided.count(True) >= 190


def test_the_first_verdict_stands() -> None:
    test = SlowdownTest(0.02)
    for _ in range(5):
        test.add(0.0, 0.001)
    said = test.verdict
    for _ in range(30):
        test.add(0.2, 0.001)
    assert test.verdict == said


def test_a_test_that_goes_nowhere_ends_with_not_kept() -> None:
    test = SlowdownTest(0.02, most_pairs=8)
    for sign in (1, -1) * 4:
        assert test.verdict.kept is None
        test.add(LIMIT + 0.01 * sign, 0.01)
    assert test.verdict.kept is False


def test_pairs_to_go_counts_down() -> None:
    test = SlowdownTest(0.02)
    assert math.isinf(test.pairs_to_go())
    left = []
    for _ in range(5):
        test.add(0.0)
        left.append(test.pairs_to_go())
    assert left[1] > left[3] > left[4] == 0.0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_ratio_that_is_no_number_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        SlowdownTest(0.02).add(bad)


@pytest.mark.parametrize(("bound", "alpha"), [(-0.01, 0.05), (0.02, 0.0), (0.02, 1.0), (math.nan, 0.05)])
def test_a_test_without_sense_is_refused(bound: float, alpha: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        SlowdownTest(bound, alpha)


# Intervals.


def test_nothing_is_excluded_before_the_first_pairs() -> None:
    test = SlowdownTest(0.02)
    assert test.interval() == (-1.0, math.inf)
    test.add(0.01)
    assert test.interval() == (-1.0, math.inf)


def test_the_interval_covers_the_truth_at_all_times_together() -> None:
    rng = np.random.default_rng(5)
    runs, out = 80, 0
    for _ in range(runs):
        test, left = SlowdownTest(0.02), False
        for _ in range(14):
            test.add(math.log1p(0.013) + 0.005 * float(rng.standard_t(3)))
            low, high = test.interval()
            left |= not low <= 0.013 <= high
        out += left
    assert out / runs <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)


def test_the_interval_narrows() -> None:
    rng = np.random.default_rng(6)
    test, widths = SlowdownTest(0.02), []
    for _ in range(60):
        test.add(math.log1p(0.01) + 0.004 * float(rng.standard_normal()))
        low, high = test.interval()
        widths.append(high - low)
    assert math.isinf(widths[3])
    assert widths[59] < 0.6 * widths[14] < math.inf
    assert widths == sorted(widths, reverse=True) or widths[59] < 0.006


# The coin.


def test_the_coin_is_fair_and_the_same_for_the_same_seed() -> None:
    heads = sum(candidate_first(seed, trial, pair) for seed in range(20) for trial in range(5) for pair in range(20))
    assert abs(heads - 1000) < 4 * math.sqrt(500)
    assert [candidate_first(7, 0, pair) for pair in range(9)] == [candidate_first(7, 0, pair) for pair in range(9)]
    assert [candidate_first(7, 0, pair) for pair in range(40)] != [candidate_first(7, 1, pair) for pair in range(40)]


def test_a_pair_of_blocks_gives_its_log_ratio_and_error() -> None:
    ratio, error = compare(block(0.102, error=0.003), block(0.1, error=0.004, setting=DEFAULT))
    assert ratio == pytest.approx(math.log(1.02))
    assert error == pytest.approx(0.005)


# The budget.


@given(kept=st.lists(st.booleans(), max_size=60), alpha=st.floats(0.001, 0.5))
def test_whatever_is_kept_what_bad_candidates_get_adds_up_to_alpha_at_most(kept: list[bool], alpha: float) -> None:
    budget, spent = AlphaBudget(alpha), 0.0
    for rightly in kept:
        amount = budget.grant()
        if rightly:
            budget.kept(amount)
        else:
            spent += amount
    assert spent <= alpha * (1 + 1e-12)


def test_a_kept_candidate_leaves_its_error_to_the_next() -> None:
    budget = AlphaBudget(0.05)
    first = budget.grant()
    budget.kept(first)
    assert budget.grant() == pytest.approx(first + 0.05 / 6)
    assert budget.grant() == pytest.approx(0.05 / 12)


# The watch.


def test_two_windows_that_are_clearly_slower_are_enough() -> None:
    watch = Watch(0.02)
    for _ in range(10):
        watch.add(math.log1p(0.01), 0.002)
    assert not watch.violated
    watch.add(math.log1p(0.03), 0.002)
    assert not watch.violated
    watch.add(math.log1p(0.03), 0.002)
    assert watch.violated


def test_a_setting_inside_its_bound_is_hardly_ever_sent_back() -> None:
    rng = np.random.default_rng(7)
    cried = 0
    for _ in range(100):
        watch = Watch(0.02)
        for _ in range(200):
            watch.add(math.log1p(0.016) + 0.004 * float(rng.standard_normal()), 0.004)
        cried += watch.violated
    assert cried <= 5


def test_without_any_error_the_first_windows_are_not_judged() -> None:
    watch = Watch(0.02)
    watch.add(0.5)
    watch.add(0.5)
    assert not watch.violated


# The account.


def test_blocks_at_default_cost_nothing() -> None:
    debt = Debt(0.02)
    debt.tell(block(0.1, setting=DEFAULT, seconds=100.0))
    assert debt.seconds == 0.0
    assert debt.default_s == 100.0
    assert debt.room_s == pytest.approx(2.0)
    assert debt.slowdown == 0.0


def test_a_probe_costs_what_it_is_slower_than_the_phase_at_default() -> None:
    debt = Debt(0.02, horizon_s=0.0)
    debt.tell(block(0.1, setting=DEFAULT, seconds=100.0, error=0.01))
    debt.tell(block(0.12, seconds=12.0))
    assert debt.seconds == pytest.approx(2.0)
    assert debt.default_s == pytest.approx(110.0)
    assert debt.error_s == pytest.approx(10.0 * 0.01)
    assert debt.slowdown == pytest.approx(2.0 / 110.0)


def test_the_latest_word_on_a_setting_counts_for_all_that_ran_at_it() -> None:
    debt = Debt(0.02)
    debt.tell(block(0.1, seconds=100.0), slowdown=0.10, upper=0.15)
    debt.tell(block(0.1, seconds=100.0), slowdown=0.01, upper=0.015)
    assert debt.default_s == pytest.approx(200.0 / 1.01)
    assert debt.seconds == pytest.approx(200.0 - 200.0 / 1.01)
    assert debt.doubt_s == pytest.approx(200.0 / 1.01 - 200.0 / 1.015)
    assert debt.room_s == pytest.approx(0.02 * debt.default_s - (200.0 - 200.0 / 1.015))


def test_work_of_a_phase_never_seen_at_default_is_neither_debt_nor_credit() -> None:
    debt = Debt(0.02)
    debt.tell(block(0.1, setting=DEFAULT, seconds=50.0, phase="train"))
    debt.tell(block(0.9, seconds=50.0, phase="rollout"))
    assert debt.seconds == 0.0
    assert debt.default_s == 50.0


def test_lost_seconds_that_no_block_shows_are_debt() -> None:
    debt = Debt(0.02)
    debt.charge(0.5)
    assert debt.seconds == 0.5


def test_the_pace_follows_a_job_that_drifts() -> None:
    debt = Debt(0.02)
    for unit_s in (0.1, 0.2, 0.2, 0.2, 0.2, 0.2):
        debt.tell(block(unit_s, setting=DEFAULT))
    debt.tell(block(0.2, seconds=10.0))
    assert abs(debt.seconds) < 0.2


@given(
    bound=st.floats(0.005, 0.1),
    horizon_s=st.floats(0.0, 200.0),
    before_s=st.floats(1.0, 1000.0),
    lost_s=st.floats(0.0, 20.0),
    slowdown=st.floats(0.001, 0.5),
)
def test_what_lasts_is_allowed_and_what_is_longer_is_not(
    bound: float, horizon_s: float, before_s: float, lost_s: float, slowdown: float
) -> None:
    assume(abs(slowdown - bound) > 1e-4)
    debt = Debt(bound, horizon_s=horizon_s)
    debt.tell(block(0.1, setting=DEFAULT, seconds=before_s))
    debt.charge(lost_s)
    lasts_s = debt.lasts_s(slowdown)
    if math.isinf(lasts_s):
        assert debt.allows(slowdown, 1e6)
    elif lasts_s > 1e-6:
        assert debt.allows(slowdown, 0.999 * lasts_s)
        assert not debt.allows(slowdown, 1.01 * lasts_s + 1e-6)
    else:
        assert debt.room_s <= 1e-6


def test_over_the_bound_only_default_may_run() -> None:
    debt = Debt(0.02)
    debt.tell(block(0.1, setting=DEFAULT, seconds=100.0))
    debt.charge(3.0)
    assert debt.room_s < 0
    assert debt.lasts_s(0.01) == 0.0
    assert math.isinf(debt.lasts_s(0.0))


def test_a_shift_leaves_what_was_owed_as_it_was_estimated_then() -> None:
    debt = Debt(0.02)
    debt.tell(block(0.1, setting=DEFAULT, error=0.001))
    for _ in range(360):
        debt.tell(block(0.101, seconds=101.0), slowdown=0.01, upper=0.0108)
    owed_s, room_s, default_s = debt.seconds, debt.room_s, debt.default_s
    debt.settle("")
    assert (debt.seconds, debt.room_s, debt.default_s) == pytest.approx((owed_s, room_s, default_s))
    debt.tell(block(0.104, seconds=1.0), slowdown=0.04, upper=0.043)
    assert debt.seconds == pytest.approx(owed_s + 1.0 - 1.0 / 1.04)
    assert debt.room_s == pytest.approx(room_s, abs=0.1)


def test_debt_is_not_forgiven_by_a_block_after_a_shift() -> None:
    debt = Debt(0.02)
    debt.tell(block(0.1, setting=DEFAULT))
    debt.tell(block(0.108, seconds=36_000.0), slowdown=0.08)
    debt.settle()
    debt.tell(block(0.1, seconds=1.0), slowdown=0.0)
    assert debt.slowdown == pytest.approx(0.08, rel=0.01)


def test_after_a_shift_the_pace_is_the_new_jobs_alone() -> None:
    debt = Debt(0.02)
    debt.tell(block(0.1, setting=DEFAULT))
    debt.settle("")
    debt.tell(block(0.2, setting=DEFAULT))
    debt.tell(block(0.202, seconds=6.06))
    assert debt.seconds == pytest.approx(0.06)


def test_a_phase_that_changed_settles_alone() -> None:
    debt = Debt(0.02)
    for phase in ("train", "rollout"):
        debt.tell(block(0.1, setting=DEFAULT, phase=phase))
        debt.tell(block(0.108, seconds=108.0, phase=phase), slowdown=0.08)
    debt.settle("train")
    for phase in ("train", "rollout"):
        debt.tell(block(0.1, seconds=0.001, phase=phase), slowdown=0.0)
    assert debt.seconds == pytest.approx(8.0, abs=0.01)


def test_two_rulers_count_in_two_units() -> None:
    debt = Debt(0.02)
    debt.tell(block(0.4, setting=DEFAULT, rung=Rung.PERIOD))
    debt.tell(block(0.1, setting=DEFAULT))
    debt.tell(block(0.404, seconds=4.04, rung=Rung.PERIOD))
    debt.tell(block(0.101, seconds=4.04))
    assert debt.seconds == pytest.approx(0.08)


def test_what_ran_before_its_phase_was_seen_at_default_is_reckoned_when_it_is() -> None:
    debt = Debt(0.02)
    debt.tell(block(0.11, seconds=11.0))
    assert debt.seconds == 0.0
    debt.tell(block(0.1, setting=DEFAULT))
    assert debt.seconds == pytest.approx(1.0)


def test_each_phase_and_ruler_has_coins_of_its_own() -> None:
    lines = [line_of("", Rung.STEPS), line_of("", Rung.PERIOD), line_of("train", Rung.STEPS)]
    draws = [tuple(candidate_first(1, 0, pair, line) for pair in range(40)) for line in lines]
    assert len(set(draws)) == 3
