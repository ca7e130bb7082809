"""``joulewise doctor``: what this machine can measure and set, and for each "no" why and what to do."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from joulewise.cli.checkup import Checkup, GpuFindings, examine
from joulewise.cli.console import Console
from joulewise.cli.finding import Finding

NOTHING_MEASURABLE = 1
_MARKS = {True: Text("✓", style="green"), False: Text("✗", style="red"), None: Text("!", style="yellow")}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Say what can be measured and set here, and for each "no" why and what to do.

    Exit code 0 if anything can be measured, a GPU or the host; 1 if nothing can. Only looks, never sets.

      joulewise doctor
      joulewise doctor --json | jq .gpus
    """
    checkup = examine()
    if as_json:
        typer.echo(json.dumps(checkup.as_json(), ensure_ascii=False, indent=2))
    else:
        Console().print(page(checkup))
    if not checkup.measurable:
        raise typer.Exit(NOTHING_MEASURABLE)


def page(checkup: Checkup) -> RenderableType:
    """The whole answer, result first."""
    parts: list[RenderableType] = [verdict(checkup)]
    if checkup.gpus:
        for group in alike(checkup.gpus):
            parts += [Text(), _gpu_lines(group), _findings(group[0].findings)]
        parts += [Text(), _findings([checkup.mine])]
    if checkup.control:
        parts += [Text(), Text("control", style="bold"), _findings(checkup.control)]
    parts += [Text(), Text("host", style="bold"), _findings(checkup.host)]
    parts += [Text(), Text("parts", style="bold"), _findings(checkup.parts)]
    parts += [Text(), Text(_about(checkup), style="dim")]
    return Group(*parts)


def verdict(checkup: Checkup) -> Text:
    """One line: what can be measured, what can be set."""
    measurable = sum(gpu.measurable for gpu in checkup.gpus)
    settable = sum(gpu.settable for gpu in checkup.gpus)
    things = []
    if measurable:
        things.append(_count(measurable, "GPU"))
    if any(finding.ok for finding in checkup.host):
        things.append("the host")
    measures = f"Can measure {' and '.join(things)}" if things else "Can measure nothing"
    sets = f"can set {_count(settable, 'GPU')}" if settable else "can set none"
    if things or settable:
        return Text(f"{measures}; {sets}.", style="bold green" if things else "bold red")
    text = Text("Nothing can be measured or set here.", style="bold red")
    text.append("\nTry it without a GPU: joulewise run --gpu sim:h200 -- COMMAND", style="not bold default")
    return text


def alike(gpus: Sequence[GpuFindings]) -> list[list[GpuFindings]]:
    """GPUs side by side of which the same is to be said; what a look at the counter costs just now aside."""

    def said(gpu: GpuFindings) -> tuple[object, ...]:
        told = tuple(f if f.what != "energy" else (f.what, f.ok) for f in gpu.findings)
        return (gpu.name, gpu.backend, told)

    return [list(group) for _, group in itertools.groupby(gpus, key=said)]


def _gpu_lines(gpus: Iterable[GpuFindings]) -> Table:
    lines = Table.grid(padding=(0, 2, 0, 0))
    for gpu in gpus:
        owner = Text("mine", style="green") if gpu.mine else Text("not mine", style="dim")
        lines.add_row(Text(f"{gpu.index} {gpu.name}", style="bold"), Text(gpu.uuid, style="dim"), owner)
    return lines


def _findings(findings: Iterable[Finding]) -> Table:
    lines = Table.grid(padding=(0, 1, 0, 0))
    lines.add_column(width=3, justify="right")
    lines.add_column(width=13, no_wrap=True)
    lines.add_column(overflow="fold")
    for finding in findings:
        says = Text(finding.says)
        if finding.do:
            says.append(f"\n→ {finding.do}", style="cyan")
        lines.add_row(_MARKS[finding.ok], finding.what, says)
    return lines


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _about(checkup: Checkup) -> str:
    drivers = sorted({gpu.driver for gpu in checkup.gpus if gpu.driver})
    driver = f" · driver {', '.join(drivers)}" if drivers else ""
    who = "root" if checkup.uid == 0 else f"uid {checkup.uid}"
    system = checkup.system.partition("-")[0]
    return f"joulewise {checkup.version} · Python {checkup.python} · {system}{driver} · {who}"
