"""What earlier versions left on a disk is read, and tells the same figures."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest

from joulewise.core import event
from joulewise.device import saved_lines
from joulewise.plan import profile_files
from joulewise.serve import tokens
from tests.frozen.conftest import PLAIN, TUNED
from tests.frozen.names import check, keys

Said = Callable[..., str]
TOLD: dict[str, tuple[str, ...]] = {
    "history": ("history", "--database", "{store}"),
    "learnt": ("history", "--learnt", "--database", "{store}"),
    "tuned-run": ("report", TUNED, "--database", "{store}"),
    "plain-run": ("report", PLAIN, "--database", "{store}"),
    "verify": ("verify", TUNED, "--database", "{store}"),
    "recur-status": ("recur", "status", "nightly", "--database", "{store}"),
    "recur-history": ("recur", "history", "nightly", "--database", "{store}"),
    "recur-frontier": ("recur", "frontier", "nightly", "--database", "{store}"),
    "plan-1": ("plan", "show", "{folder}/plan-1.json"),
    "plan-2": ("plan", "show", "{folder}/plan-2.json"),
    "plan-of-profile-1": ("plan", "solve", "{folder}/profile-1.json", "{schedule}"),
    "plan-of-profile-2": ("plan", "solve", "{folder}/profile-2.json", "{schedule}"),
}
SCHEDULE = ("--schedule", "1f1b", "--stages", "3", "--microbatches", "4", "--blocking-w", "80")
FIGURES = Path(__file__).parent / "recorded" / "figures"


def figures(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Every number and truth value of an answer with its path; prose may change."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from figures(part, f"{at}.{key}".lstrip("."))
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from figures(part, f"{at}[{number}]")
    elif isinstance(value, int | float):
        yield at, value


@pytest.mark.parametrize("what", TOLD)
def test_figures_are_what_they_were(what: str, said: Said, written: Path, frozen: bool) -> None:
    places = {"{store}": [str(written / "store.db")], "{schedule}": list(SCHEDULE)}
    words = [part for word in TOLD[what] for part in places.get(word, [word.replace("{folder}", str(written))])]
    found = dict(figures(json.loads(said(*words, "--json"))))
    path = FIGURES / f"{what}.json"
    if not frozen:
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(found, indent=0) + "\n")
    assert found == pytest.approx(json.loads(path.read_text()), rel=1e-9)


def test_every_event_of_a_journal_is_read_and_written_as_it_was(written: Path) -> None:
    base = sqlite3.connect(written / "store.db")
    lines = [line for (line,) in base.execute("SELECT event FROM events ORDER BY stream, id")]
    base.close()
    assert len(lines) > 300
    for line in lines:
        assert event.to_json(event.from_json(line)) == line


def test_events_and_their_fields_are_these() -> None:
    kinds = get_args(event.Event)
    check("journal", [f"{kind.__name__}.{each.name}" for kind in kinds for each in fields(kind)])


def test_the_fields_within_events_are_these(written: Path) -> None:
    base = sqlite3.connect(written / "store.db")
    rows = [json.loads(line) for (line,) in base.execute("SELECT event FROM events")]
    base.close()
    check("journal-lines", {f"{row['event']}: {key}" for row in rows for key in keys(row, ("profile", "prices.gpu_s"))})


def test_what_a_killed_daemon_owes_is_known(written: Path) -> None:
    found = {}
    for path in (written / "settings").glob("*.jsonl"):
        said = saved_lines.contents(path.read_bytes(), path.stem)
        assert not said.damage
        found[path.stem] = {knob: (entry.before, entry.wrote, entry.owner.uid) for knob, entry in said.entries.items()}
    assert found == {
        "GPU-2b414f0d-86c8-4824-9fbd-de20fd78cd8b": {
            "sm_mhz": (None, (), 0),
            "power_limit_w": (700.0, (450.0,), 0),
        },
        "GPU-783bf063-ee25-4593-ab15-3d8b750392fe": {
            "sm_mhz": (None, (1200.0,), 0),
            "power_limit_w": (700.0, (300.0,), 0),
        },
    }


def test_a_recording_is_played(said: Said, written: Path) -> None:
    look = json.loads(said("top", "--once", "--json", "--gpu", f"replay:{written / 'recording.jsonl'}"))
    (gpu,) = look["gpus"]
    assert gpu["power_w"] is not None
    first = json.loads((written / "recording.jsonl").read_text().splitlines()[0])
    check("recording", keys(first))


def test_profiles_of_both_versions_and_of_others_tools_have_the_same_stages(written: Path) -> None:
    first, second = (profile_files.read(written / f"profile-{version}.json") for version in (1, 2))
    assert first.options.keys() == second.options.keys()
    assert len(profile_files.read(written / "profile.csv").options) == 8


@pytest.mark.usefixtures("may_set")
def test_a_grant_is_still_one(said: Said, written: Path) -> None:
    (grant,) = json.loads(said("grant", "list", "--grants", written / "grants", "--json"))["grants"]
    assert (grant["uid"], grant["job"], grant["knobs"]) == (1000, "frozen", {"sm_mhz": [345.0, 1500.0]})


def test_a_token_is_still_one(written: Path) -> None:
    (token,) = tokens.read(written / "tokens")
    assert (token.scope, token.name) == ("write", "frozen")
