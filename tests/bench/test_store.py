"""The bench of the store in small: what it looks at is what it filled, and a look does not grow with what is kept."""

from __future__ import annotations

import json

import pytest

from bench import store


def test_the_memory_of_a_look_does_not_grow(capsys: pytest.CaptureFixture[str]) -> None:
    assert store.main(["--json", "--runs", "400", "--readings", "8000", "--long", "60000", "--times", "3"]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])["figures"]
    assert figures["blocks"] == 400 + 59
    assert min(figures["overview_ms"], figures["overview_cold_ms"]) > 0
    assert figures["overview_growth_mib"] < 50
    assert figures["draw_growth_mib"] < 50
    assert figures["reading_bytes"] < 60  # blocks of 20 samples only
