"""The tables of a cluster's report: its jobs, and what was promised of them against what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import pairwise

from joulewise.core.units import format_duration, format_energy
from joulewise.report.cluster_facts import Amount, Story, Stretch, reference
from joulewise.report.cluster_words import setting_words

COLOURS = 7
"""Jobs have a colour each, until there are more than these."""


def names(story: Story) -> list[str]:
    """The jobs that were seen, in order."""
    return list(dict.fromkeys(job.name for status in story.watched for job in status.jobs))


def jobs(story: Story) -> str:
    """A row a job: how it ended, what it had, what it took."""
    rows = []
    for at, name in enumerate(names(story)):
        job = next(job for status in reversed(story.watched) for job in status.jobs if job.name == name)
        energy_j = max(each.energy_j for status in story.watched for each in status.jobs if each.name == name)
        sizes = [stretch.gpus for stretch in story.of(name)]
        ran = "" if job.started_s is None else format_duration((job.ended_s or story.last.time_s) - job.started_s)
        account = story.accounts_j.get(name)
        rows.append(
            [
                f'<span class="job p{at % COLOURS}">{escape(name)}</span>',
                escape(job.state if job.exit_code in (None, 0) else f"{job.state} ({job.exit_code})"),
                str(job.gpus_asked),
                " → ".join(str(size) for size, after in pairwise([*sizes, None]) if size != after),
                str(job.starts),
                f"{job.done:,.0f}" + ("" if job.work is None else f" of {job.work:,.0f}"),
                escape(ran),
                escape(format_energy(energy_j)),
                "–" if account is None else escape(format_energy(account)),
            ]
        )
    heads = [
        "job",
        "state",
        "asked",
        "GPUs had",
        "starts",
        "steps",
        "ran",
        "energy, by the agents",
        "in Slurm's accounts",
    ]
    return _table(heads, rows)


def proofs(story: Story) -> str:
    """A row a stretch that could be measured."""
    rows = []
    for at, name in enumerate(names(story)):
        found = [stretch for stretch in story.of(name) if stretch.unit_s is not None]
        first = reference(found)
        rows += [_proof(story, stretch, first, at) for stretch in found]
    if not rows:
        return '<p class="say">No job ran long enough in one way to be measured.</p>'
    heads = ["job", "from", "cap", "GPUs", "setting", "promised", "measured", "time off", "energy off", "saved a step"]
    return _table(heads, rows) + (
        '<p class="small">Seconds and joules of a step, all GPUs of the job, hosts apart; ± one standard error. '
        "Promised: as believed when it was decided. Saved: measured against measured, with the same job's stretch at "
        "its highest clocks (baseline); where that had another number of GPUs, more or fewer GPUs are in it, too.</p>"
    )


def _proof(story: Story, stretch: Stretch, first: Stretch | None, at: int) -> list[str]:
    promised, unit_s, unit_j = stretch.promised, stretch.unit_s, stretch.unit_j
    assert unit_s is not None
    told = "–" if promised is None else f"{promised.unit_s:.3g} s, {promised.unit_j:,.0f} J"
    seen = f"{_pm(unit_s, '.3f')} s" + ("" if unit_j is None else f", {_pm(unit_j, ',.0f')} J")
    off_s = "–" if promised is None else _off(unit_s, promised.unit_s)
    off_j = "–" if promised is None or unit_j is None else _off(unit_j, promised.unit_j)
    saved = "–"
    if first is stretch:
        saved = "baseline"
    elif first is not None and first.unit_j is not None and unit_j is not None:
        ratio = unit_j / first.unit_j
        saved = f"{100.0 * (1.0 - ratio.value):.1f} % ± {100.0 * ratio.error:.1f}".replace("-", "−")
    return [
        f'<span class="job p{at % COLOURS}">{escape(stretch.job)}</span>',
        _clock(stretch.from_s - story.begun_s),
        "yes" if stretch.capped else "",
        str(stretch.gpus),
        escape(setting_words(stretch.setting)),
        escape(told),
        escape(seen),
        escape(off_s),
        escape(off_j),
        escape(saved),
    ]


def _clock(passed_s: float) -> str:
    minutes, seconds = divmod(round(passed_s), 60)
    return f"{minutes}:{seconds:02d}"


def _pm(amount: Amount, pattern: str) -> str:
    return f"{amount.value:{pattern}} ± {amount.error:{pattern}}"


def _off(amount: Amount, promised: float) -> str:
    return f"{100.0 * (amount.value / promised - 1.0):+.1f} %".replace("-", "−")


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th{_number(at)}>{escape(title)}</th>" for at, title in enumerate(heads))
    body = "".join(
        "<tr>" + "".join(f"<td{_number(at)}>{cell}</td>" for at, cell in enumerate(row)) + "</tr>" for row in rows
    )
    return f'<div class="wide"><table><tr>{top}</tr>{body}</table></div>'


def _number(at: int) -> str:
    return ' class="n"' if at else ""
