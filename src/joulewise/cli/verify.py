"""``joulewise verify``: recompute what a report claims from the journal of its run, and say what does not fit.

The claim is recomputed from the journal's blocks alone, neither from the numbers of the report nor from those that the
run itself wrote down. Baseline windows are drawn again from the seed that was journalled before the first of them, and
the whole page is written again from the journal and compared, letter by letter. The curve of power between blocks, and
what the tuner expected, are not in the journal: of these, and of a carbon factor, only that the page shows what it
carries. How far the blocks themselves can be believed is ``cli.standing``'s: readings, and countersignatures.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from joulewise.cli import FAILED
from joulewise.cli.past_store import StoreFlag, opened_store
from joulewise.cli.standing import label_lines, standing
from joulewise.core import input_files
from joulewise.core.errors import BadSpec
from joulewise.core.event import Began, Event

if TYPE_CHECKING:
    from joulewise.report.story import Story
    from joulewise.store.store import Store


def verify(
    report: Annotated[str, typer.Argument(metavar="REPORT", help="A report (HTML), or a run as 'history' names it.")],
    key: Annotated[
        list[str] | None,
        typer.Option("--key", metavar="KEY|FILE", help="A public key that you trust, or a file of them: 'KEY NAME'."),
    ] = None,
    database: StoreFlag = None,
    as_json: Annotated[bool, typer.Option("--json", help="The answer as one JSON object.")] = False,
) -> None:
    """Recompute a report's saving from the journal of its run.

      joulewise verify out/report.html
      joulewise verify 20260314-101500-3f2a --key watcher.pub

    Says how far it could be checked: recomputed from blocks, checked against
    readings, or countersigned by a key that you trust. Exit code: 0 if the
    journal bears the report out; 1 with every discrepancy if it does not, or
    if --key is given and no such key has signed; 2 if there is no such report.
    """
    from joulewise.store import views
    from joulewise.store.countersignature import trusted_keys

    trusted = trusted_keys(key or [])
    page = _read(Path(report)) if Path(report).suffix.lower() in (".html", ".htm") or Path(report).is_file() else None
    store = opened_store(database)
    told = _carried(page, report) if page is not None else None
    if told is not None:
        _refuse_without_proof(told, report)
    try:
        name = views.named(store.tables, str(told["run"]) if told else report)
    except BadSpec as error:
        raise BadSpec(f"{error}; a journal kept elsewhere is named with --database FILE or URL") from None
    events = [event for _, event in store.journal(name).read()]
    if not events:
        raise BadSpec(f"run {name} has no events in {store.name}; there is nothing to verify")
    if any(isinstance(event, Began) and event.facts.get("tuned") is False for event in events):
        raise BadSpec(f"run {name} was not tuned: nothing is claimed, so there is nothing to verify")
    found = examined(store, name, events, told, page, trusted)
    if as_json:
        print(json.dumps({"run": name, **found}, allow_nan=False))
    else:
        _say(name, found)
    raise typer.Exit(FAILED if found["problems"] else 0)


def examined(
    store: Store,
    name: str,
    events: list[Event],
    told: dict[str, Any] | None = None,
    page: str | None = None,
    trusted: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """All that ``verify`` says of a run: ``check``, and how far the blocks themselves could be checked (``standing``).
    ``label`` is null where there is a problem. ``trusted``: public key → name."""
    from joulewise.store import views

    run = views.one(store.tables, name)
    found = check(events, told, page, None if run is None else run.measured)
    more = standing(store, name, events, trusted or {})
    problems = [*found["problems"], *more["problems"]]
    return {**found, **more, "problems": problems, "label": None if problems else more["label"]}


def check(
    events: list[Event], told: dict[str, Any] | None, page: str | None, measured: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What the journal proves (``claim``, ``headline``, ``windows``, ``pairs``) and every discrepancy (``problems``).

    ``told`` and ``page`` are what a report carries and shows; without them the journal is checked against itself.
    ``measured`` is what the store says that the whole command used.
    """
    from joulewise.report import outcome
    from joulewise.report.claim import Claim
    from joulewise.report.story import Story
    from joulewise.report.words import plainly
    from joulewise.tune.verify import verify as recompute

    problems: list[str] = []
    if told is not None:
        # A run that was restarted after its report was written has gone on in the same journal.
        count = told.get("events")
        if not isinstance(count, int) or count > len(events):
            problems.append(f"the report was made from {count} events, the journal has {len(events)}")
        else:
            events = events[:count]
    story = Story.of(events)
    claim = Claim.of(story)
    verified = recompute(events)
    problems += map(plainly, verified.problems)
    if told is not None:
        if told.get("digest") != story.digest():
            problems.append("the journal is not the one that the report was made from: its events were changed since")
        problems += _differences(told["claim"], claim.to_json())
        problems += _other_use(told.get("beside"), measured)
    if page is not None and told is not None:
        problems += _other_parts(page, told, story)
    return {
        "headline": outcome.headline(story, claim),
        "claim": claim.to_json(),
        "held": claim.held,
        "windows": verified.proof.windows,
        "pairs": verified.proof.pairs if claim.held else 0,
        "seed": story.facts.get("seed"),
        "problems": problems,
    }


def _refuse_without_proof(told: dict[str, Any], name: str) -> None:
    """BadSpec for a report that claims nothing, or that nobody can check."""
    from joulewise.report.page import FORMAT

    facts = told.get("facts")
    if isinstance(facts, dict) and facts.get("dry_run"):
        raise BadSpec(f"{name} is of a dry run: nothing was set and nothing is claimed, so there is nothing to verify")
    if not told["run"] or told.get("proves") is False:
        raise BadSpec(f"{name} is of a run that was not tuned: nothing is claimed, so there is nothing to verify")
    if told.get("kept") is False:
        raise BadSpec(f"{name} is of a run whose journal could not be kept, as it says: nobody can verify it")
    if told.get("format") != FORMAT:
        _refuse_other_version(told)


def _refuse_other_version(told: dict[str, Any]) -> None:
    run, version = told["run"], told.get("version", "an older version")
    raise BadSpec(
        f"the report was written by joulewise {version}, and its page cannot be drawn again by this one; 'joulewise "
        f"verify {run}' checks the journal, 'joulewise history {run} --report NEW.html' writes the report anew"
    )


def _other_parts(page: str, told: dict[str, Any], story: Story) -> list[str]:
    """The parts of a page that are not what the journal makes of them."""
    import joulewise
    from joulewise.report.beside import Beside
    from joulewise.report.figures import Beyond
    from joulewise.report.page import page as drawn
    from joulewise.report.page import parts

    try:
        beyond = Beyond.from_json(told.get("beyond"))
        beside = Beside.from_json(told["beside"]) if "beside" in told else None
    except ValueError as error:
        return [f"the report is damaged: {error}"]
    again = drawn(story, beyond, beside=beside, sealed=bool(told.get("sealed"))).encode("utf-8", "replace").decode()
    if page == again:
        return []
    if told.get("version") != joulewise.__version__:
        _refuse_other_version(told)
    ours, theirs = parts(again), parts(page)
    names = [name for name in dict.fromkeys((*ours, *theirs)) if ours.get(name) != theirs.get(name)]
    return [f"the report's page is not what the journal says: {name}" for name in names or ["the order of its parts"]]


def _other_use(beside: object, measured: Mapping[str, Any] | None) -> list[str]:
    """What a report says that the whole command used, where the store says otherwise."""
    said = beside.get("measured") if isinstance(beside, dict) else None
    if said is None or (measured is not None and said == json.loads(json.dumps(dict(measured)))):
        return []
    return ["what the report says that the whole command used is not what was kept of it"]


def _differences(said: dict[str, Any], is_so: dict[str, Any]) -> list[str]:
    """Numbers of a claim that differ by more than the writing of floats can explain."""
    differ = []
    for key, value in is_so.items():
        other = said.get(key)
        same = other == value
        if isinstance(value, float) and isinstance(other, (int, float)) and not isinstance(other, bool):
            same = math.isclose(value, other, rel_tol=1e-9, abs_tol=1e-12)
        if not same:
            differ.append(f"the report says {_shown(key, other)}, the journal {_shown(key, value)}")
    return differ


def _shown(key: str, value: object) -> str:
    """A number of a claim with its name, as people read it."""
    name = key.removesuffix("_j").removesuffix("_s").replace("_half", " ±").replace("_", " ")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        unit = " J" if key.endswith("_j") else " s" if key.endswith("_s") else ""
        return f"{name} {value:.6g}{unit}" if unit else f"{name} {100 * value:+.4f} %"
    return f"{name} {value}"


def _read(path: Path) -> str:
    return input_files.read_text(path, way_out="name what 'run --report' wrote, or a run of 'history'")


def _carried(page: str, name: str) -> dict[str, Any]:
    from joulewise.report.page import carried

    try:
        return carried(page)
    except ValueError as error:
        raise BadSpec(f"{name} is no report of joulewise: {error}; name what 'run --report' wrote") from None


def _say(name: str, found: dict[str, Any]) -> None:
    """The answer first, then why."""
    problems = found["problems"]
    print(f"run {name}: {found['headline']}")
    if not problems:
        windows, seed = found["windows"], found["seed"]
        several = f"{windows} baseline windows where seed {seed} drew them"
        lie = f"1 baseline window where seed {seed} drew it" if windows == 1 else several if windows else ""
        if pairs := found["pairs"]:
            drawn = f"{pairs} pair{'s' * (pairs != 1)} in the order that {'it' if windows else f'seed {seed}'} drew"
            lie = f"{lie}, and {drawn}, count" if windows else f"{drawn} count{'s' * (pairs == 1)}"
        what = "" if found["held"] else "; nothing was held, so no saving is claimed"
        print("verified: recomputed from the journal" + (f"; {lie}" if lie else "") + what)
        for line in label_lines(found):
            print(line)
        return
    print(f"NOT verified: {len(problems)} discrepanc{'ies' if len(problems) > 1 else 'y'}")
    for problem in problems:
        print(f"  {problem}")
