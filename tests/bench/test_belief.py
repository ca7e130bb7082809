"""The belief against measured tables of public sweeps: errors and honesty, a few cases of each kind."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from bench.belief import Case, cases, figures, judge, table


@pytest.mark.exhaustive
def test_three_probes_tell_the_rest_of_measured_tables(data: Path) -> None:
    grouped: dict[str, list[Case]] = defaultdict(list)
    for case in cases(data, drawn=2):
        if len(case.states) > 4:
            grouped[case.group].append(case)
    assert len(grouped) >= 8
    misses = [
        miss
        for group in grouped.values()
        for case in group[:: max(1, len(group) // 5)]
        for knows in ("known", "stranger")
        for miss in judge(case, knows=knows, seed=1)
    ]
    found = figures(misses)
    for end in ("3_probes", "3_probes_stranger"):
        assert found[f"time_pct_{end}"] < 3.0
        assert found[f"power_pct_{end}"] < 2.5
        assert found[f"time_inside_{end}"] > 0.78
        assert found[f"energy_inside_{end}"] > 0.78
    assert found["time_pct_2_probes"] < found["time_pct_0_probes"]
    assert "rtx8000" in table(misses)
