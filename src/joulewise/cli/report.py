"""``joulewise report``: a run that was kept as a page, a picture or JSON; or how two of them differ.

Reads the store only, whichever engine keeps it. A tuned run's page is the one that ``joulewise verify`` takes. Not a
run that is still going: what is not finished has no result yet.
"""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from joulewise.cli import outputs, say
from joulewise.cli.past_store import StoreFlag, opened_store
from joulewise.core.errors import BadSpec

if TYPE_CHECKING:
    from joulewise.report.beside import Beside
    from joulewise.report.figures import Beyond
    from joulewise.report.kept_run import KeptRun
    from joulewise.report.worth import Carbon
    from joulewise.store import Store


def report(
    ctx: typer.Context,
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="By the beginning of its name. Default: the last.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE.html", help="The page. Default: joulewise-RUN.html here."),
    ] = None,
    plot: Annotated[
        Path | None,
        # --png is what it was called before.
        typer.Option("--plot", "--png", metavar="FILE", help="Draw power, clock and decisions: .svg, .png or .pdf."),
    ] = None,
    compare: Annotated[
        tuple[str, str] | None, typer.Option(metavar="A B", help="How run B differs from run A.", show_default=False)
    ] = None,
    carbon_g_per_kwh: Annotated[
        float | None, typer.Option(metavar="G", help="Grams of CO2e a kWh emits where it ran; none is assumed.")
    ] = None,
    carbon_source: Annotated[str | None, typer.Option(metavar="WORDS", help="Where that figure is from.")] = None,
    database: StoreFlag = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="To stdout, every number in full; no page unless --out.")
    ] = False,
) -> None:
    """Write the report of a run, or of how two runs differ.

      joulewise report --out run.html --plot run.png
      joulewise report 20260314-1015 --carbon-g-per-kwh 380 --carbon-source ENTSO-E
      joulewise report --compare 20260313-0900 20260314-1015

    The page is one file with everything in it: what was spent and saved, with
    errors, how that was measured, and every decision. Runs that were not
    tuned have one, too; they claim nothing.
    """
    from joulewise.report.worth import Carbon

    if run is not None and compare is not None:
        three = f"{run} and --compare {' '.join(compare)}"
        raise BadSpec(f"{three} are three runs; name one RUN, or two with --compare A B")
    _refuse_files(out, plot)
    carbon = Carbon.given(carbon_g_per_kwh, carbon_source)
    with closing(opened_store(database)) as store:
        if compare is not None:
            if plot is not None:
                raise BadSpec("--compare has no --plot; ask for the report of each run")
            _compare(ctx, *(_kept(store, each) for each in compare), carbon=carbon, out=out, as_json=as_json)
        else:
            kept = _kept(store, run if run is not None else _last(store))
            _one(ctx, store, kept, carbon, out, plot, as_json=as_json)


def _refuse_files(out: Path | None, plot: Path | None) -> None:
    """BadSpec or MissingPart for files that could not be written; before anything is read."""
    if out is not None:
        outputs.refuse_no_html("--out", out)
        outputs.refuse_unwritable("--out", out)
    if plot is not None:
        from joulewise.report.plot import check

        check(plot, "--plot")
        outputs.refuse_unwritable("--plot", plot)
    outputs.refuse_one_for_two({"--out": out, "--plot": plot})


def _last(store: Store) -> str:
    """The run that began last of those that have ended. BadSpec where there is none."""
    from joulewise.report.run_summary import State
    from joulewise.report.summaries import Summaries

    found, _ = Summaries(store).page(0, 1, state=State.FINISHED)
    if not found:
        raise BadSpec(f"no run that has ended is kept in {store.name}; 'joulewise run -- COMMAND' keeps one")
    return found[0].name


def _kept(store: Store, beginning: str) -> KeptRun:
    """The run whose name begins so. BadSpec where there is none, or it is still going, or nothing can be read of it."""
    from joulewise.report.kept_run import KeptRun
    from joulewise.report.run_summary import State
    from joulewise.report.story import Story
    from joulewise.report.summaries import Summaries
    from joulewise.store import views

    name = views.named(store.tables, beginning)
    summary = Summaries(store).one(name)
    if summary is None:  # forgotten this moment
        raise BadSpec(f"no run is called {name!r} in {store.name}; see 'joulewise history'")
    if summary.state is State.RUNNING:
        raise BadSpec(f"run {name} is still going; wait for its end, or see 'joulewise history {name}'")
    story = Story.of(event for _, event in store.journal(name).read())
    return KeptRun.of(store, summary, story)


def _one(
    ctx: typer.Context,
    store: Store,
    kept: KeptRun,
    carbon: Carbon | None,
    out: Path | None,
    plot: Path | None,
    *,
    as_json: bool,
) -> None:
    from joulewise.report.beside import Beside

    summary, beyond = kept.summary, kept.beyond(store)
    if out is None and plot is None and not as_json:
        out = Path(f"joulewise-{re.sub(r'[^A-Za-z0-9._-]', '_', summary.name)[:100]}.html")
        outputs.refuse_unwritable("--out", out)
    if out is not None:
        _write(out, kept.page(beyond, carbon))
    if plot is not None:
        _draw(plot, kept, beyond, max(1, len(summary.gpus)))
    if as_json:
        print(json.dumps(_plain(kept, Beside(kept.measured, carbon)), allow_nan=False))
    else:
        print(f"{summary.name}: {summary.headline}")
    for path, what in ((out, "report"), (plot, "picture")):
        if path is not None:
            say(ctx, f"the {what} is {path}")


def _write(out: Path, made: str) -> None:
    try:
        out.write_text(made, encoding="utf-8", errors="replace")
    except OSError as error:
        raise BadSpec(
            f"--out {out} cannot be written: {(error.strerror or str(error)).lower()}; name another"
        ) from None


def _draw(plot: Path, kept: KeptRun, beyond: Beyond, gpus: int) -> None:
    from joulewise.report import run_plot

    summary = kept.summary
    where = f"{summary.command}  ({', '.join(dict.fromkeys(summary.gpus))}{', virtual' if summary.virtual else ''})"
    try:
        run_plot.draw(plot, kept.story, beyond, title=summary.headline, subtitle=where, gpus=gpus)
    except OSError as error:
        raise BadSpec(
            f"--plot {plot} cannot be written: {(error.strerror or str(error)).lower()}; name another"
        ) from None


def _plain(kept: KeptRun, beside: Beside) -> dict[str, Any]:
    """The whole report as plain values; ``…_half`` are halves of 95 % intervals."""
    from joulewise.core.plain import plain
    from joulewise.report import run_facts
    from joulewise.report.claim import STANDARD_ERRORS, Claim
    from joulewise.report.worth import Amount

    summary, story = kept.summary, kept.story
    claim = Claim.of(story)
    carbon = None
    if beside.carbon is not None:
        used = None if beside.energy_j is None else Amount(beside.energy_j, STANDARD_ERRORS * (beside.error_j or 0.0))
        saved = None if claim.saved_j is None else Amount(claim.saved_j, claim.saved_half_j or 0.0)
        grams = [None if each is None else beside.carbon.of(each) for each in (used, saved)]
        carbon = {**beside.carbon.to_json(), "used_g": plain(grams[0]), "saved_g": plain(grams[1])}
    return {
        "run": summary.name,
        "summary": plain(summary),
        "facts": run_facts.shown(story.facts),
        "measured": kept.measured,
        "total_error_j": beside.error_j,
        "claim": claim.to_json() if kept.tuned else None,
        "proof": plain(run_facts.proof(story, claim)),
        "decisions": plain(run_facts.chapters(story, summary.began_s)),
        "tried": plain(run_facts.points(story)),
        "carbon": carbon,
    }


def _compare(
    ctx: typer.Context, a: KeptRun, b: KeptRun, *, carbon: Carbon | None, out: Path | None, as_json: bool
) -> None:
    from joulewise.report import compare_page
    from joulewise.report.compare import Side, compare

    if a.summary.name == b.summary.name:
        raise BadSpec(f"--compare names run {a.summary.name} twice; name another beside it")
    found = compare(*(Side.of(each.summary, each.story, each.measured) for each in (a, b)), carbon=carbon)
    if out is not None:
        _write(out, compare_page.page(found))
        say(ctx, f"the comparison is {out}")
    if as_json:
        print(json.dumps(found.to_json(), allow_nan=False))
        return
    for line in compare_page.lines(found):
        print(line)
