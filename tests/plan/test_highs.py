"""The solver where it is installed, and one line where it is not."""

from __future__ import annotations

import sys

import pytest

from joulewise.core.errors import MissingPart
from joulewise.plan.highs import highs


def test_a_solver_is_fresh_and_silent(capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("highspy")
    one, two = highs("a test"), highs("a test")
    one.addVar(0.0, 1.0)
    one.run()
    assert (one.getNumCol(), two.getNumCol()) == (1, 0)
    assert capfd.readouterr().out == ""


def test_where_it_is_not_installed_one_line_says_for_what_and_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    with pytest.raises(MissingPart, match=r"the bound needs HiGHS: pip install 'joulewise\[plan\]'"):
        highs("the bound")
