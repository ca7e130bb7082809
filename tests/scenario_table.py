"""The table of scenarios that a test run prints at its end: what was tried, what was seen, what was asked for.

A test takes part by the ``scenario`` fixture, from any process of pytest-xdist::

    def test_a_killed_client_s_gpu_is_as_before(scenario):
        shown = scenario("R1", "SIGKILL a client that holds a lease", criterion="≤ 1 s")
        ...
        shown.saw(f"restored in {took_ms:.0f} ms")

Several tests may show parts of one scenario: it passes if all of them do. One that nobody has shown is listed as not
run. ``--scenarios FILE`` writes the same as JSON, for the bench. This module judges nothing: the tests' own assertions
do.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

WANTED = tuple(f"R{number}" for number in range(1, 39))
"""What the project promises to show."""
_PROPERTY = "scenario"
_WORST = ("failed", "skipped", "passed")
_MOST_SEEN = 4
_NARROWEST = 120  # columns; a log file has no width of its own


@dataclass(slots=True)
class Shown:
    """One row: a scenario, or a part of one, as one test shows it."""

    name: str
    what: str
    criterion: str
    seen: str = ""
    result: str = "failed"
    figures: dict[str, float] = field(default_factory=dict)

    def saw(self, words: str, **figures: float) -> None:
        """Say what was seen; said twice, both stand. ``figures`` are for the bench: times, which no test judges."""
        self.seen = f"{self.seen}; {words}" if self.seen else words
        self.figures |= figures


@pytest.fixture
def scenario(request: pytest.FixtureRequest) -> Callable[..., Shown]:
    """Begin a row of the table: ``scenario("R1", "SIGKILL a client", criterion="≤ 1 s").saw("12 ms")``."""

    def begin(name: str, what: str, *, criterion: str) -> Shown:
        assert name in WANTED, f"{name} is no scenario of ours; there are {', '.join(WANTED)}"
        shown = Shown(name, what, criterion)
        request.node.stash.setdefault(_rows, []).append(shown)
        return shown

    return begin


_rows = pytest.StashKey[list[Shown]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if "scenario" in getattr(item, "fixturenames", ()):
        rows = item.stash.get(_rows, None) or [Shown("?", item.name, "it shows something")]
        # Reports travel from worker to controller, objects do not.
        report.user_properties = [
            *(pair for pair in report.user_properties if pair[0] != _PROPERTY),
            *((_PROPERTY, json.dumps(asdict(row))) for row in rows),
        ]
    return report


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--scenarios", metavar="FILE", type=Path, help="write the table of scenarios there, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Table(config), "the table of scenarios")


class _Table:
    """Gathers rows where all reports come together, and shows them at the end."""

    def __init__(self, config: pytest.Config) -> None:
        self._file: Path | None = config.getoption("--scenarios")
        self._rows: dict[str, list[Shown]] = {}
        self._outcomes: dict[str, set[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        rows = [Shown(**json.loads(str(value))) for name, value in report.user_properties if name == _PROPERTY]
        if rows:
            self._rows[report.nodeid] = rows
            self._outcomes.setdefault(report.nodeid, set()).add(report.outcome)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        rows = self._judged()
        if self._file is not None:
            self._file.write_text(json.dumps(as_json(rows), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        if rows:
            terminalreporter.section("scenarios")
            terminalreporter.write(drawn(rows, max(_NARROWEST, terminalreporter._tw.fullwidth)))

    def _judged(self) -> list[Shown]:
        """All rows with their results: a test's set-up, body and end must all have passed."""
        for nodeid, rows in self._rows.items():
            outcomes = self._outcomes[nodeid]
            result = next((each for each in ("failed", "skipped") if each in outcomes), "passed")
            for row in rows:
                row.result = result
        return sorted((row for rows in self._rows.values() for row in rows), key=_order)


def results(rows: Iterable[Shown]) -> Mapping[str, str]:
    """Every scenario's result: the worst of its parts; "not run" without any."""
    parts: dict[str, list[str]] = {name: [] for name in WANTED}
    for row in rows:
        parts.setdefault(row.name, []).append(row.result)
    return {name: min(seen, key=_WORST.index) if seen else "not run" for name, seen in parts.items()}


def as_json(rows: list[Shown]) -> dict[str, Any]:
    """The table for machines; what was skipped or not run has not been shown, and counts as failed."""
    verdicts = results(rows)
    passed = sum(verdict == "passed" for verdict in verdicts.values())
    return {
        "scenarios_passed": passed,
        "scenarios_failed": len(verdicts) - passed,
        "results": dict(verdicts),
        "rows": [asdict(row) for row in rows],
    }


def drawn(rows: list[Shown], width: int) -> str:
    """The table for people: cases of one test are one row, and what was not run is one line."""
    verdicts = results(rows)
    table = Table("", "scenario", "seen", "asked for", "", box=SIMPLE_HEAD, pad_edge=False)
    before = ""
    for row in merged(rows):
        table.add_row(row.name if row.name != before else "", row.what, row.seen, row.criterion, row.result)
        before = row.name
    out = io.StringIO()
    Console(file=out, width=width, color_system=None, highlight=False, markup=False).print(table)
    passed = sum(verdict == "passed" for verdict in verdicts.values())
    missing = [name for name, verdict in verdicts.items() if verdict == "not run"]
    not_run = f"; not run: {', '.join(missing)}" if missing else ""
    return f"{out.getvalue()}{passed} of {len(verdicts)} scenarios passed{not_run}\n"


def merged(rows: Iterable[Shown]) -> list[Shown]:
    """Rows that differ only in what was seen as one, with the number of them and the worst of their results."""
    groups: dict[tuple[str, str, str], list[Shown]] = {}
    for row in sorted(rows, key=_order):
        groups.setdefault((row.name, row.what, row.criterion), []).append(row)
    return [
        Shown(
            *key,
            "; ".join([*([f"{len(group)} cases"] if len(group) > 1 else []), *_distinct(row.seen for row in group)]),
            min((row.result for row in group), key=_WORST.index),
        )
        for key, group in groups.items()
    ]


def _distinct(seen: Iterable[str]) -> list[str]:
    """At most a few of what cases have seen: all of it is in the JSON."""
    said = list(dict.fromkeys(filter(None, seen)))
    return said if len(said) <= _MOST_SEEN else [*said[:_MOST_SEEN], "…"]


def _order(row: Shown) -> tuple[int, str]:
    number = re.search(r"\d+", row.name)
    return int(number.group()) if number else 10**6, row.name
