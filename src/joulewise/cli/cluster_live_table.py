"""How a live cluster stands, for the terminal: result first, 80 columns. Pure: a status in, a page out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from joulewise.cluster.scheduler_status import JobStatus, NodeStatus, Status
from joulewise.core.knob import Setting
from joulewise.core.units import J_PER_KWH, J_PER_WH, format_duration, format_si, kwh_from_joules

_MOST_NODES = 16
_OVER = ("ended", "failed", "cancelled")
_STYLES = {"running": "green", "failed": "red", "down": "red", "cancelled": "dim", "ended": "dim", "off": "dim"}


def page(status: Status) -> RenderableType:
    """All of it."""
    parts: list[RenderableType] = [headline(status), *(Text(line, style="dim") for line in about(status))]
    parts += [Text(line, style="yellow") for line in troubles(status)]
    if status.nodes:
        parts += [Text(), _nodes(status.nodes)]
    if status.jobs:
        parts += [Text(), _jobs(status)]
    else:
        parts.append(Text("no jobs; hand one in with 'joulewise cluster submit'", style="dim"))
    return Group(*parts)


def headline(status: Status) -> Text:
    """What is drawn, and what may be."""
    head = Text(format_si(status.power_w, "W"), style="bold")
    if status.cap_w is None:
        return head.append("  no power cap", style="not bold dim")
    share = status.power_w / status.cap_w
    head.append(f" of {format_si(status.cap_w, 'W')}  ", style="not bold")
    within = status.compliant is not False
    head.append(bar(share, 24), style="green" if within else "red")
    head.append(f" {share:.0%}" if within else f" {share:.0%}, above the cap", style="not bold" if within else "red")
    return head


def about(status: Status) -> list[str]:
    """Jobs, GPUs, limits and prices, a line each."""
    running = sum(1 for job in status.jobs if job.place and job.state not in _OVER)
    waiting = sum(1 for job in status.jobs if not job.place and job.state not in _OVER)
    up = [node for node in status.nodes if node.state == "up"]
    used, gpus = sum(node.used_gpus for node in up), sum(node.gpus for node in up)
    asleep = sum(1 for node in status.nodes if node.state == "off")
    said = f"{running} job{' runs' if running == 1 else 's run'} on {used} of {gpus} GPUs, {waiting} wait"
    lines = [said + (f"; {asleep} node{'s' * (asleep != 1)} asleep" if asleep else "")]
    spent = f"{energy(status.energy_j)} so far, {energy(status.idle_j)} of it nobody's"
    if status.budget_j is not None:
        spent += f"; budget {energy(status.budget_j)} in every {format_duration(status.budget_period_s)}"
        spent += f", by {status.budget_by}" if status.budget_by else ""
    lines.append(spent)
    if (limits := _cap(status)) is not None:
        lines.append(limits)
    if (prices := _prices(status)) is not None:
        lines.append(prices)
    return lines


def troubles(status: Status) -> list[str]:
    """What an operator should know, the whole cluster's first."""
    lines = [f"the engine does not answer: {status.engine}"] if status.engine else []
    lines += status.troubles
    for node in status.nodes:
        lines += [says if says.startswith(node.name) else f"{node.name}: {says}" for says in node.says]
    # An agent's trouble is its node's word: in a line of its own it could pass for one of ours.
    return list(dict.fromkeys(" ".join(line.split()) for line in lines))


def bar(share: float, width: int) -> str:
    """A share of 1 as a bar; more than 1 is full."""
    filled = round(min(1.0, max(0.0, share)) * width)
    return "█" * filled + "░" * (width - filled)


def energy(energy_j: float) -> str:
    """As a bill says it, three digits: ``"412 kWh"``, ``"3.20 kWh"``, ``"8.5 Wh"``."""
    if energy_j < 0.0995 * J_PER_KWH:
        return f"{energy_j / J_PER_WH:.1f} Wh"
    value = kwh_from_joules(energy_j)
    return f"{value:,.0f} kWh" if value >= 99.95 else f"{value:.1f} kWh" if value >= 9.995 else f"{value:.2f} kWh"


def clock(setting: Setting) -> str:
    """What is set, in short."""
    said = []
    if (mhz := setting.get("sm_mhz")) is not None:
        said.append(f"{mhz:g} MHz")
    if (limit_w := setting.get("power_limit_w")) is not None:
        said.append(f"{limit_w:g} W")
    return " ".join(said) or "top"


def _cap(status: Status) -> str | None:
    said = []
    if status.cap_aim_w != status.cap_w:
        aim = "none" if status.cap_aim_w is None else format_si(status.cap_aim_w, "W")
        said.append(f"moving to {aim}")
    if status.cap_until_s is not None:
        said.append(f"for {format_duration(max(0.0, status.cap_until_s - status.time_s))} more")
    if status.cap_source == "feed":
        said.append("by the feed")
    elif status.cap_by:
        said.append(f"by {status.cap_by}")
    return f"cap {', '.join(said)}" if said else None


def _prices(status: Status) -> str | None:
    """In time of one job, as ``explain`` says them."""
    prices = status.prices
    kwh_s = (prices.joule_s + prices.watt_s) * J_PER_KWH
    scarce = [
        f"a GPU{'' if len(prices.gpu_s) == 1 else f' of {kind}'} for an hour {format_duration(3600.0 * price)}"
        for kind, price in prices.gpu_s.items()
        if price > 0
    ]
    if kwh_s > 0:
        scarce.append(f"a kWh {format_duration(kwh_s)}")
    return f"prices, in a job's time: {', '.join(scarce)}" if scarce else None


def _nodes(nodes: Sequence[NodeStatus]) -> Table:
    shown = nodes
    if len(nodes) > _MOST_NODES:
        shown = sorted(nodes, key=lambda node: not (node.says or node.state == "down"))[:_MOST_NODES]
    table = _table(("node", ""), ("state", ""), ("GPUs", ""), ("power", "r"), ("ceiling", "r"))
    for node in shown:
        held = "■" * min(16, node.used_gpus) + "▫" * min(16, node.foreign_gpus)
        gpus = f"{held}{'·' * max(0, min(16, node.gpus) - len(held))} {node.used_gpus}/{node.gpus}"
        power = "–" if node.power_w is None else format_si(node.power_w, "W")
        ceiling = "" if node.ceiling_w is None else format_si(node.ceiling_w, "W")
        table.add_row(node.name, Text(node.state, style=_STYLES.get(node.state, "")), gpus, power, ceiling)
    if len(nodes) > len(shown):
        table.add_row(Text(f"… and {len(nodes) - len(shown)} more", style="dim"))
    return table


def _jobs(status: Status) -> Table:
    table = _table(
        ("job", ""), ("state", ""), ("GPUs", "r"), ("clock", "r"), ("done", ""), ("energy", "r"), ("ends in", "r")
    )
    for job in _in_order(status.jobs):
        over = job.state in _OVER
        doing = _AIMS.get(job.aim, job.state) if not over else job.state
        gpus = str(job.gpus) if job.gpus and (job.place or over) else "–"  # one that is over may hold none any more
        gpus += f" of {job.gpus_asked}" if job.gpus_asked and job.gpus_asked != job.gpus and job.place else ""
        table.add_row(
            job.name,
            Text(doing, style=_STYLES.get(job.state, "")),
            gpus,
            clock(job.setting) if job.place and not over else "",
            _done(job),
            energy(job.energy_j) if job.energy_j else "",
            _ends(job, status.time_s),
            style="dim" if over else "",
        )
    return table


_AIMS = {"start": "starting", "resize": "resizing", "migrate": "moving", "preempt": "stopping", "stop": "ending"}


def _in_order(jobs: Iterable[JobStatus]) -> list[JobStatus]:
    """Who runs, who waits, who is done; each in order of submission."""
    return sorted(jobs, key=lambda job: (job.state in _OVER, not job.place, job.submitted_s))


def _done(job: JobStatus) -> str:
    if job.state == "ended":
        return f"{bar(1.0, 8)} 100%"
    whole = job.work if job.work is not None else None if job.work_left is None else job.done + job.work_left
    if not whole or (not job.done and not job.place):
        return ""
    share = min(1.0, job.done / whole)
    return f"{bar(share, 8)} {'' if job.work is not None else '~'}{share:.0%}"


def _ends(job: JobStatus, now_s: float) -> str:
    if job.eta_s is None or job.state in _OVER:
        return ""
    left = format_duration(max(0.0, job.eta_s - now_s))
    return f"{left}, late" if job.deadline_s is not None and job.eta_s > job.deadline_s else left


def _table(*columns: tuple[str, str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    for title, side in columns:
        table.add_column(title, justify="right" if side == "r" else "left", no_wrap=True)
    return table
