"""The bench of an ask in small: it says what it measured."""

from __future__ import annotations

import json

import pytest

from bench import desk


@pytest.mark.exhaustive
def test_it_asks_a_desk_that_knows_all_runs_and_new_processes(capsys: pytest.CaptureFixture[str]) -> None:
    assert desk.main(["--json", "--runs", "300"]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])["figures"]
    assert figures["runs"] == 300
    assert min(figures["ask_ms"], figures["first_ask_ms"], figures["replay_ms"]) > 0.0
