"""The report of a tuned run: one HTML file with everything in it, which opens anywhere and asks nobody for anything.

A fold of the journal: the same events give the same page, letter by letter, and ``joulewise verify`` draws it again
from the journal that it names. What the journal does not hold, the readings of power and clock between blocks and what
the tuner expected, is ``Beyond``, which the page carries; without it the blocks' own means are drawn.
"""

from __future__ import annotations

import json
import re
from html import escape
from typing import Any

from joulewise.core.parsing import json_value
from joulewise.core.units import format_duration, format_energy, format_percent
from joulewise.core.version import VERSION
from joulewise.report import beside as spent
from joulewise.report import figures, frame, outcome, worth
from joulewise.report.beside import Beside
from joulewise.report.claim import INTERVAL, Claim
from joulewise.report.figures import Beyond
from joulewise.report.run_facts import KINDS, PRIVATE
from joulewise.report.story import Story, Stretch, stretches
from joulewise.report.words import named, plainly, verdict

FORMAT = 3
"""Of the facts that a report carries for ``verify``."""
_MOST_ROWS = 150
_FACTS = re.compile(r'<script type="application/json" id="joulewise">(.*?)</script>', re.DOTALL)


def page(
    story: Story,
    beyond: Beyond | None = None,
    *,
    title: str | None = None,
    kept: bool = True,
    beside: Beside | None = None,
    sealed: bool = True,
) -> str:
    """The whole file. ``kept``: whether the journal can be found again. ``beside``: None leaves its sections out.
    ``sealed``: whether it shows the journal's seal; pages of earlier versions do not, and are drawn again without.

    ``title`` is for a run without anything to prove, such as a dry run: it stands in place of the claim.
    """
    beyond = beyond or Beyond()
    claim = Claim.of(story)
    proves = title is None
    title = title or outcome.headline(story, claim)
    sections = [
        _head(story, claim, title, beside, proves=proves),
        frame.section("What was spent", spent.spent(beside) if beside is not None else ""),
        frame.section("What to do next", _advised(story)),
        frame.section("Power and clock", figures.power(story, beyond)),
        frame.section("What this job can do", figures.frontier(story, beyond)),
        frame.section("Saving so far", figures.saving(story) if proves and claim.held else ""),
        frame.section("What was changed, when and why", _changes(story)),
        frame.section("What could not be judged", _unjudged(claim) if proves and claim.held else ""),
        frame.section("What it is worth", _worth(story, claim) if proves else ""),
        frame.section("Carbon", spent.carbon(claim, beside) if beside is not None else ""),
        frame.section("How it was measured", spent.method(story.facts, claim, beside) if beside is not None else ""),
        frame.section("How to verify", _verify(story, proves=proves, kept=kept, sealed=sealed)),
    ]
    facts = _carried(story, claim, beyond, beside, proves=proves, kept=kept, sealed=sealed)
    script = f'<script type="application/json" id="joulewise">{facts}</script>\n'
    return frame.page(title, sections, after=script)


def parts(html: str) -> dict[str, str]:
    """A page in its parts by their titles, and what is around them; to say where two pages differ."""
    found = {"the headline and what is under it": "".join(re.findall(r"<header>.*?</header>", html, re.DOTALL))}
    for body in re.findall(r"<section>.*?</section>", html, re.DOTALL):
        name = re.search(r"<h2>(.*?)</h2>", body, re.DOTALL)
        found[f"‘{name[1] if name else ''}’"] = body
    found["the facts that it carries"] = "".join(_FACTS.findall(html))
    rest = re.sub(r"<header>.*?</header>|<section>.*?</section>", "", html, flags=re.DOTALL)
    found["what is around its parts"] = _FACTS.sub("", rest)
    return found


def carried(html: str) -> dict[str, Any]:
    """The facts that a page carries; ValueError when it carries none."""
    found = _FACTS.search(html)
    if found is None:
        raise ValueError("no facts of joulewise in it")
    facts = json_value(found[1])
    if not isinstance(facts, dict) or not isinstance(facts.get("run"), str) or not isinstance(facts.get("claim"), dict):
        raise ValueError("its facts name no run and no claim")
    return facts


def _carried(
    story: Story, claim: Claim, beyond: Beyond, beside: Beside | None, *, proves: bool, kept: bool, sealed: bool
) -> str:
    facts: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "run": story.run,
        "proves": proves,
        "kept": kept,
        **({"sealed": True} if sealed else {}),
        "digest": story.digest(),
        "events": len(story.events),
        "claim": claim.to_json(),
        "facts": {key: value for key, value in story.facts.items() if key not in PRIVATE},
        "beyond": beyond.to_json(),
        **({} if beside is None else {"beside": beside.to_json()}),
    }
    # Nothing in it may end the element that holds it, or begin another.
    return json.dumps(facts, allow_nan=False).replace("<", "\\u003c")


def _head(story: Story, claim: Claim, title: str, beside: Beside | None, *, proves: bool) -> str:
    facts = story.facts
    command = facts.get("command_line") or " ".join(map(str, facts.get("command", ())))
    where = ", ".join(map(str, facts.get("gpu_names", ()))) or str(facts.get("gpu_name", ""))
    where += " (virtual)" if facts.get("virtual") else ""
    said = [f"{where}" if where else "", str(facts.get("wanted", "")), str(facts.get("started", ""))]
    untuned = facts.get("tuned") is False
    watched = (format_duration(claim.watched_s), "watched, from its first use of a GPU to its end")
    tiles = [] if untuned or beside is not None else [watched]  # beside says how long the whole took, seconds more
    if proves:
        held = story.held()
        tiles.insert(0, (named(held) if held is not None else "nothing", "held last"))
        share = claim.baseline_share
        proof = "" if share is None else f"; {format_percent(share)} of the held time at default, for the proof"
        tiles.append((format_duration(claim.judged_s), f"of clean work that was judged{proof}"))
    if proves and claim.saved_j is not None:
        word = "saved" if claim.saved_j >= 0 else "used more"
        saved = format_energy(abs(claim.saved_j), claim.saved_half_j)
        tiles.insert(0, (saved, f"{word} against default {claim.about}"))
    if beside is not None:
        tiles[1 if proves and claim.saved_j is not None else 0 : 0] = spent.tiles(beside)
    compared = claim.held or (not proves and not untuned)
    interval = f'<div class="small">{INTERVAL}; against the same job with nothing set.</div>\n'
    return (
        f"<header><h1>{frame.text(title)}</h1>\n"
        f'<div class="command">{escape(command)}</div>\n'
        f'<div class="small">{escape(" · ".join(filter(None, said)))}</div>\n'
        f"{interval if compared else ''}{frame.tiles(tiles)}</header>"
    )


def _advised(story: Story) -> str:
    """How to come by what a dry run, or one without rights, would have set."""
    if not isinstance(story.facts.get("advised"), str):
        return ""
    return (
        "<p>Nothing was set, and what is expected comes from this GPU's law, not from a measurement. To have it, run "
        "the same command with <code>--tune</code> and without <code>--dry-run</code>, as root or where "
        "<code>joulewise daemon</code> lets you: it compares every setting with the default before it holds it, and "
        "proves what that saved. <code>joulewise doctor</code> says what is missing on this machine.</p>"
    )


def _changes(story: Story) -> str:
    chapters = stretches(story)
    rows = [_row(chapter) for chapter in chapters[:_MOST_ROWS]]
    if not rows:
        return ""
    more = len(chapters) - len(rows)
    said = [f"… and {more} more; the journal has them all."] if more > 0 else []
    idle = sum(change.what == "idle" for change in story.shifted)
    said += [f"Clocked down while idle, {idle} time{'s' if idle != 1 else ''}."] if idle else []
    return (
        '<div class="wide"><table><thead><tr><th class="n">at</th><th>what</th><th>setting</th><th>why</th>'
        f'<th class="n">blocks</th></tr></thead><tbody>\n{chr(10).join(rows)}\n</tbody></table></div>'
        + "".join(f'<p class="small">{each}</p>' for each in said)
    )


def _row(chapter: Stretch) -> str:
    counted = f"{chapter.blocks} block{'s' if chapter.blocks != 1 else ''}" if chapter.blocks else ""
    if chapter.windows:
        counted += f", {chapter.windows} at default"
    what = named(chapter.setting) if chapter.blocks else ""
    reason = plainly(chapter.reason).removeprefix(f"{what}: ")
    # After a comparison the tuner's word is about it; after other blocks it is about what comes next.
    judged = verdict(chapter.says) if chapter.kind == "verify" else ""
    why = "; ".join(dict.fromkeys(filter(None, (reason, judged))))
    return (
        f'<tr{" class=held" if chapter.kind == "hold" else ""}><td class="n">{format_duration(chapter.start_s)}</td>'
        f"<td>{escape(KINDS.get(chapter.kind, chapter.kind))}"
        f"{escape(f' ({chapter.phase})' if chapter.phase else '')}</td>"
        f'<td>{frame.text(what)}</td><td>{frame.text(why)}</td><td class="n">{escape(counted)}</td></tr>'
    )


def _unjudged(claim: Claim) -> str:
    if not claim.unjudged:
        return '<p class="say">Nothing: every part of the run that was tuned could be compared.</p>'
    return f"<ul>{''.join(f'<li>{frame.text(each)}</li>' for each in claim.unjudged)}</ul>"


def _worth(story: Story, claim: Claim) -> str:
    found = worth.worth(claim, story.facts)
    if found is None:
        return ""
    return f"<ul>{''.join(f'<li>{frame.text(each)}</li>' for each in worth.lines(found))}</ul>"


def _verify(story: Story, *, proves: bool, kept: bool, sealed: bool) -> str:
    if not proves:
        tuned = story.facts.get("tuned") is not False  # else a user may have set something by hand
        return (
            f"<p>{'Nothing was set and nothing' if tuned else 'Nothing'} is claimed, so there is nothing to verify.</p>"
        )
    if not kept:
        return "<p>The journal of this run could not be kept, so nobody can verify this page.</p>"
    seed = story.facts.get("seed")
    seal = (
        ""
        if not sealed or story.seal is None
        else (
            f"<p>The journal’s seal is <code>{escape(story.seal)}</code>. Note it down where whoever tunes cannot "
            "write: a journal that is rewritten later has another one.</p>"
        )
    )
    return (
        f"<p>Run <code>{escape(story.run)}</code>. <code>joulewise verify THIS-FILE</code> draws this page again from "
        "the run’s journal and compares every letter, and checks that the baseline windows lie where a seed that was "
        f"written down before the first of them{escape(f' ({seed})') if seed is not None else ''} drew them.</p>{seal}"
    )
