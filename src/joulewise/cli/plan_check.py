"""``joulewise plan check``: is this file a plan, and is it for the GPUs here? Only looks, never sets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from joulewise.cli import FAILED
from joulewise.cli.finding import Finding
from joulewise.cli.gpus import HELP, opened
from joulewise.cli.plan_query import AsJson, PlanFile
from joulewise.core.errors import OutOfRange, Unsupported

if TYPE_CHECKING:
    from joulewise.device.gpu import GpuInfo
    from joulewise.plan.plan import Plan


def check(
    plan: PlanFile,
    gpu: Annotated[str | None, typer.Option(metavar="SPEC", help=HELP)] = None,
    gpu_name: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Compare with this GPU's name; none is looked at.")
    ] = None,
    driver: Annotated[str | None, typer.Option(metavar="VERSION", help="Compare with this driver.")] = None,
    model: Annotated[str | None, typer.Option(metavar="TEXT", help="Compare with this model.")] = None,
    as_json: AsJson = False,
) -> None:
    """Whether a plan is for the GPUs here: their model, driver and clocks.

    Exit code 0 if nothing speaks against it, 1 if it must not be used here, 2
    if it is no plan. The schedule is compared by whoever runs it.

      joulewise plan check plan.json
      joulewise plan check plan.json --gpu-name "NVIDIA A100-SXM4-80GB"
    """
    from joulewise.cli import plan_views
    from joulewise.plan import plan_files

    read = plan_files.read(plan)
    findings = [Finding("plan", True, f"{len(read.points)} points that do what they promise")]
    if gpu_name is None and driver is None:
        with opened(gpu) as found:
            infos = [each.info for each in found.gpus]
        here = {"gpu": sorted({info.name for info in infos}), "driver": sorted({info.driver or "" for info in infos})}
        findings += [*_clocks(read, infos), *_launches(read)]
    else:
        here = {"gpu": [gpu_name] if gpu_name else [], "driver": [driver] if driver else []}
    here["model"] = [model] if model else []
    findings += _facts(read, here)
    refused = any(finding.ok is False for finding in findings)
    if as_json:
        said = [{"what": each.what, "ok": each.ok, "says": each.says} for each in findings]
        print(plan_views.dumped({"ok": not refused, "findings": said}))
    else:
        plan_views.print_page(plan_views.findings(findings, refused=refused))
    if refused:
        raise typer.Exit(FAILED)


def _facts(plan: Plan, here: dict[str, list[str]]) -> Iterator[Finding]:
    """What the plan says that it is for, against what is here: several names where GPUs differ, none where unknown."""
    from joulewise.plan.plan_identity import Fact

    for name in ("gpu", "driver", "model"):
        stated, names = getattr(plan.identity, name), [each for each in here[name] if each]
        if stated is None:
            yield Finding(
                name, None, "the plan does not say which it is for", f"'joulewise plan solve' takes {_FLAGS[name]}"
            )
        elif not names:
            yield Finding(
                name, None, f"it is for {stated.says}; which there is here is not known", f"say {_FLAGS[name]}"
            )
        else:
            wrong = [each for each in names if Fact.of(each).sha256 != stated.sha256]
            says = f"it is for {stated.says}, and here is {', '.join(wrong)}" if wrong else stated.says
            yield Finding(name, not wrong, says, "make a plan from a profile of these" if wrong else None)


_FLAGS = {"gpu": "--gpu-name", "driver": "--driver", "model": "--model"}


def _launches(plan: Plan) -> Iterator[Finding]:
    """A warning where more than clocks is to be set."""
    from joulewise.plan.execution import launches

    if any(launches(step.setting) for point in plan.points for row in plan.steps(point) for step in row):
        says = "it also says where communication is launched and on how many SMs, which joulewise cannot do"
        yield Finding("launches", None, says, "whoever launches the kernels has to read them from the plan")


def _clocks(plan: Plan, infos: list[GpuInfo]) -> Iterator[Finding]:
    """Whether every setting that any point asks for could be set on every GPU here."""
    settings = {step.setting for point in plan.points for row in plan.steps(point) for step in row}
    for info in {info.name: info for info in infos}.values():
        for setting in sorted(settings, key=repr):
            try:
                info.space.check(setting, gpu=info.name)
            except (Unsupported, OutOfRange) as problem:
                yield Finding("settings", False, str(problem))
                return
    yield Finding("settings", True, f"all {len(settings)} could be set here, given the rights")
