"""A few jobs of the estimate's bench: truths that the belief cannot represent, and intervals that hold them."""

from pathlib import Path

import pytest

from bench.estimate import BOUNDS, Asked, asked, figures, report
from bench.estimate_truths import watched
from joulewise.model.fleet import Interval


@pytest.mark.exhaustive
def test_intervals_hold_the_truth_of_virtual_jobs_and_tell_large_savings_from_small():
    jobs = watched(None, count=9, seed=11)
    found: list[Asked] = [each for job in jobs for each in asked(job, "library", (), (0.02,))]
    assert sum(each.covered for each in found) >= 8
    by_said = sorted(found, key=lambda each: each.possible.mean)
    small, large = by_said[:3], by_said[-3:]
    assert sum(each.true for each in large) > 1.3 * sum(each.true for each in small)


def test_the_table_has_a_line_a_group_and_bound():
    said = Interval(0.05, 0.02, 0.09)
    found = [Asked(str(i), "library", bound, said, 0.01 * i) for i in range(12) for bound in BOUNDS]
    told = figures(found)
    assert told["library_2pct_coverage"] == 8 / 12
    lines: list[str] = []
    report(told, lines.append)
    assert len(lines) == 1 + len(BOUNDS)


def test_intervals_hold_the_savings_of_measured_programs_with_real_counters(data: Path):
    jobs = [job for job in watched(data, count=0) if job.group == "sweep"][::4]
    found = [each for job in jobs for each in asked(job, "sweep", (), (0.02,))]
    assert len(found) >= 4
    assert sum(each.covered for each in found) >= len(found) - 1
