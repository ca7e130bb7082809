"""What became of a tuned run, in one line that says what was found, and why where nothing was held.

Pure, and from the journal alone, so that terminal, report, history and ``verify`` say the same. Every way of ending has
words of its own: a saving; a job that was left alone, and why; a GPU in other hands; a command that ended too soon; a
tuner that stopped; a budget that was not met; what a dry run would set.
"""

from __future__ import annotations

from joulewise.core.block import Role, Rung
from joulewise.core.knob import DEFAULT
from joulewise.core.units import format_power, format_si
from joulewise.report import knobs
from joulewise.report.claim import STANDARD_ERRORS, Claim, percent
from joulewise.report.story import STRETCH, Story
from joulewise.report.words import LOST, plainly, reason
from joulewise.tune.status import Advice

_UNSTEADY = "its pace is too unsteady"
_ALONE = "left alone"
_OVER = "on average over the work that was judged"


def headline(story: Story, claim: Claim) -> str:
    """The result first: what was saved, or what was found instead; then a budget that was missed."""
    why = untuned(story, claim)
    if why is not None:
        first = f"not tuned: {why}"
    elif claim.held:
        first = claim.says()
    elif story.lost is not None:
        first = f"stopped tuning: {reason(story.lost.says)}"
    elif (alone := _left_alone(story)) is not None:
        first = f"nothing is set: default is best here, {_count(story)} tried; {alone}"
    else:
        first = f"nothing is held: {_job(story)} ended before anything was compared to the end, {_count(story)} tried"
    return "; ".join((first, *missed_budgets(story)))


def untuned(story: Story, claim: Claim) -> str | None:
    """Why nothing but default was ever set for more than a look; None where settings were tried or held."""
    if claim.held or _tried(story):
        return None
    if story.lost is not None and story.lost.says.startswith(LOST[1]):
        return reason(story.lost.says)
    if story.lost is not None:
        return f"tuning stopped: {reason(story.lost.says)}"
    if (alone := _left_alone(story)) is not None:
        return alone
    facts = story.finished.facts if story.finished is not None else {}
    if facts.get("rung") == Rung.UNKNOWN:
        return f"{_job(story)}'s pace could not be told: {reason(str(facts.get('ruler', '')))}"
    return f"{_job(story)} ended before anything could be tried"


def advised(advice: Advice) -> str:
    """``"would set SM clock at most 1500 MHz: −8.1 % ± 1.9 % energy, +0.8 % ± 0.9 % time expected"``."""
    if not advice.setting:
        return "would set nothing: " + (plainly(advice.says) or "default is best here, as far as can be told")
    parts = [
        f"{percent(change, STANDARD_ERRORS * error, sign=True)} {what}"
        for change, error, what in (
            (advice.energy_change, advice.energy_error, "energy"),
            (advice.time_change, advice.time_error, "time"),
        )
    ]
    return f"would set {knobs.chosen(advice.setting)}: {', '.join(parts)} expected"


def missed_budgets(story: Story) -> list[str]:
    """A line for each budget that the run did not keep to on average."""
    blocks = [each.block for each in story.seen]
    if not blocks:
        return []
    energy_j = sum(block.energy_j for block in blocks)
    power_w, unit_j = energy_j / sum(block.duration_s for block in blocks), energy_j / sum(b.work for b in blocks)
    lines = []
    budget_w, budget_j = story.facts.get("power_budget_w"), story.facts.get("energy_budget_j")
    if isinstance(budget_w, (int, float)) and power_w > budget_w:
        lines.append(f"a budget of {budget_w:g} W was not met: {format_power(power_w)} {_OVER}")
    if isinstance(budget_j, (int, float)) and unit_j > budget_j:
        lines.append(f"a budget of {budget_j:g} J a step was not met: {format_si(unit_j, 'J')} {_OVER}")
    return lines


def _job(story: Story) -> str:
    """What ran, by the word of whoever had it tuned: a script tunes its own loop."""
    return "the loop" if story.facts.get("framework") else "the command"


def _tried(story: Story) -> set[object]:
    blocks = [each.block for each in story.seen if STRETCH[each.role] in ("probe", "verify")]
    return {block.setting for block in blocks if block.setting != DEFAULT}


def _count(story: Story) -> str:
    tried = len(_tried(story))
    return f"{tried} setting{'s' if tried != 1 else ''}"


def _left_alone(story: Story) -> str | None:
    """Why the tuner left the job alone at the end; None if it did not."""
    said = [each.decision.reason for each in story.decided[-1:]]
    said += [each.says for each in story.seen[-1:] if each.role is Role.HOLD and each.block.setting == DEFAULT]
    found = next((each for each in said if each.startswith(_ALONE)), None)
    if found is None:
        return None
    why = reason(found)
    bound = story.facts.get("bound")
    if why.startswith(_UNSTEADY) and isinstance(bound, (int, float)):
        why += f", bound {100 * bound:g} %"
    return why
