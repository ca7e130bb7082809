"""What became of a tuned run, in one line that says what was found, and why where nothing was held.

Pure, and from the journal alone, so that terminal, report, history and ``verify`` say the same. Every way of ending has
words of its own: a saving; a job that was left alone, and why; a GPU in other hands; a command that ended too soon; a
tuner that stopped; a budget that was not met.
"""

from __future__ import annotations

from joulewise.core.block import Role, Rung
from joulewise.core.knob import DEFAULT
from joulewise.core.units import format_power, format_si
from joulewise.report.claim import Claim
from joulewise.report.story import STRETCH, Story
from joulewise.report.words import LOST, reason

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
        first = f"nothing is held: the command ended before anything could be verified, {_count(story)} tried"
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
        return f"the command's pace could not be told: {reason(str(facts.get('ruler', '')))}"
    return "the command ended before anything could be tried"


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
