"""``joulewise cluster explain``: why a job runs where and how fast it does, or waits.

Of a live cluster its scheduler is asked about now. Of a simulation there are two ways to a moment: simulate again up to
it (a simulation is the same every time), or read it from a file that ``simulate --decisions`` wrote.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from joulewise.cli import cluster_flags as flags
from joulewise.cli.cluster_live import Server, Token, scheduler
from joulewise.cli.recur_terms import seconds
from joulewise.core.errors import BadSpec
from joulewise.core.units import J_PER_KWH, format_duration

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulewise.cli.cluster_scene import Scene
    from joulewise.cluster.round import Decision
    from joulewise.cluster.state import Snapshot

_SENTENCE = re.compile(r"(?<=\.) ")
_PAST = {"start": "started", "resize": "resized", "retune": "retuned", "preempt": "stopped", "migrate": "moved"}


def explain(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Its name.", show_default=False)],
    at: Annotated[
        str | None,
        typer.Option(metavar="2h", help="When, in a simulation: since the first submission; 90s, 30m, 2h."),
    ] = None,
    trace: Annotated[Path | None, typer.Option(metavar="FILE", help="Simulate this trace up to then.")] = None,
    decisions: Annotated[Path | None, typer.Option(metavar="FILE.jsonl", help="Or read what 'simulate' wrote.")] = None,
    gpu: Annotated[str | None, typer.Option(metavar="SPEC", help="With --trace: 'sim:a100*512'.")] = None,
    policy: Annotated[str, typer.Option(metavar="NAME", help="Of which policy, as 'simulate' names it.")] = "priced",
    energy_budget: flags.EnergyBudget = None,
    power_cap: flags.PowerCap = None,
    fairness: flags.Fairness = 0.0,
    load: flags.Load = None,
    jobs: flags.Jobs = None,
    tenant: flags.Tenant = None,
    size_error: flags.SizeError = 0.5,
    seed: flags.Seed = 0,
    gpus_per_node: flags.PerNode = None,
    host_watts: flags.HostWatts = None,
    power_off: flags.PowerOff = True,
    warm: flags.Warm = 1,
    server: Server = None,
    token_file: Token = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, every number in full.")] = False,
) -> None:
    """Why a job runs where and how fast it does: the prices, in words.

      joulewise cluster explain night-7
      joulewise cluster explain night-7 --at 2h --trace trace.csv \\
          --gpu 'sim:a100*64'
      joulewise cluster explain night-7 --at 2h --decisions rounds.jsonl

    Without --trace and --decisions a live scheduler is asked ('cluster up').
    With --trace, give the flags that 'cluster simulate' had: the same flags
    and seed make the same decisions.
    """
    if trace is not None and decisions is not None:
        raise BadSpec("--trace and --decisions both say where the decision comes from; say one of them")
    if trace is None and decisions is None:
        if at is not None:
            raise BadSpec("--at is a moment of a simulation: add --trace FILE or --decisions FILE, or leave it out")
        said = _live(job, server, token_file)
    elif at is None:
        raise BadSpec("say at which moment of the simulation: --at 2h")
    elif decisions is not None:
        said = _read(decisions, policy, job, _moment_s(at))
    else:
        if gpu is None:
            raise BadSpec("--trace needs --gpu; write --gpu 'sim:a100*64'")
        assert trace is not None
        limits = (energy_budget, power_cap)
        scene = flags.scene(
            trace, gpu, gpus_per_node, host_watts, power_off, warm, load, jobs, tenant, size_error, seed, *limits
        )
        said = _simulated(scene, policy, fairness, job, _moment_s(at))
    from joulewise.cli.plan_views import dumped

    if as_json:
        print(dumped(said))
        return
    from rich.text import Text

    from joulewise.cli.console import Console

    console = Console()
    for number, sentence in enumerate(_SENTENCE.split(said["says"])):
        console.print(Text(sentence, style="" if number else "bold"))
    for line in said["about"]:
        console.print(Text(line, style="dim"))


def _moment_s(at: str) -> float:
    return 0.0 if at.strip() in ("0", "0s") else seconds("--at", at)


def _live(job: str, server: str | None, token_file: Path | None) -> dict[str, Any]:
    client = scheduler(server, token_file)
    why = client.why(job)
    about = [f"as decided last by the scheduler at {client.url}"]
    return {"job": job, "policy": None, "time_s": why.time_s, "says": why.says, "about": about}


class _Enough(Exception):
    """The moment asked for has passed."""


def _simulated(scene: Scene, policy: str, fairness: float, job: str, at_s: float) -> dict[str, Any]:
    from joulewise.cli.cluster_decisions import why_so
    from joulewise.cli.cluster_policies import several

    (asked,) = several([policy], fairness=fairness)
    begun_s = scene.jobs[0].job.submitted_s
    found = next((each.job for each in scene.jobs if each.job.name == job), None)
    if found is None:
        some = ", ".join(each.job.name for each in scene.jobs[:5])
        raise BadSpec(f"{scene.trace} has no job {job!r}; it begins with {some} …")
    came_s = found.submitted_s - begun_s
    if came_s > at_s:
        raise BadSpec(
            f"job {job!r} is submitted {came_s:.0f} s after the first one; give --at {came_s + 60:.0f}s or later"
        )
    last: tuple[Snapshot, Decision] | None = None
    moves: list[str] = []

    def watch(snapshot: Snapshot, decision: Decision) -> None:
        nonlocal last
        if snapshot.now_s - begun_s > at_s:
            raise _Enough
        last = (snapshot, decision)
        when = format_duration(snapshot.now_s - begun_s)
        moves.extend(f"{_PAST[move.what]} after {when}" for move in decision.moves if move.job == job)

    with suppress(_Enough):
        scene.play(asked, watch=watch)
    if last is None or last[0].now_s < found.submitted_s:
        raise BadSpec(
            f"nothing has been decided about job {job!r} by then: rounds are a minute apart; give a later --at"
        )
    snapshot, decision = last
    if all(each.name != job for each in snapshot.jobs):
        raise BadSpec(f"job {job!r} has ended by then; give an earlier --at")
    says = why_so(asked, snapshot, decision, job)
    about = [f"decided {format_duration(snapshot.now_s - begun_s)} after the first submission, policy {policy}"]
    if moves:
        about.append("so far: " + ", ".join(moves[-6:]))
    return {"job": job, "policy": policy, "time_s": snapshot.now_s, "says": says, "about": about}


def _read(path: Path, policy: str, job: str, at_s: float) -> dict[str, Any]:
    from joulewise.cli.cluster_decisions import read

    begun_s = 0.0
    policies: dict[str, None] = {}
    rounds: list[Mapping[str, Any]] = []
    spans: list[Mapping[str, Any]] = []
    for line in read(path):
        if "policy" in line:
            policies[line["policy"]] = None
        if line.get("policy") != policy:
            continue
        if "time_s" in line:
            begun_s = line["begun_s"]
            if line["time_s"] - begun_s <= at_s:
                now = {"time_s": line["time_s"], "prices": line["prices"], "why": line["why"].get(job)}
                rounds.append(now | {"there": job in line["ways"] or job in line["waits"]})
        elif line.get("job") == job and line["from_s"] - begun_s <= at_s:
            spans.append(line)
    if policy not in policies:
        raise BadSpec(f"{path} has no decision of {policy!r}; it has {', '.join(policies) or 'none'}: give --policy")
    about = [_span(span, begun_s) for span in spans[-6:]]
    if not rounds and spans:
        return {"job": job, "policy": policy, "time_s": None, "says": f"{job}, as it came to be:", "about": about}
    if not rounds or not rounds[-1]["there"]:
        ended = any(each["there"] for each in rounds)
        raise BadSpec(f"job {job!r} {'has ended' if ended else 'is not there'} by then in {path}; give another --at")
    last, why = rounds[-1], next((each for each in reversed(rounds) if each["why"]), None)
    about.insert(0, f"after {format_duration(last['time_s'] - begun_s)}: {_prices(last['prices'])}")
    says = f"{job} waits; it has not been given a GPU yet."
    if why is not None:
        says = why["why"]
        when = format_duration(why["time_s"] - begun_s)
        about.insert(0, f"decided {when} after the first submission, policy {policy}; not changed since")
    return {"job": job, "policy": policy, "time_s": last["time_s"], "says": says, "about": about}


def _prices(prices: Mapping[str, Any]) -> str:
    """The prices of a round that was written down."""
    if not prices["gpu_s"]:
        return "this policy sets no prices"
    gpus = ", ".join(f"an hour of a GPU of {kind} {price * 3600:,.3g} s" for kind, price in prices["gpu_s"].items())
    kwh_s = (prices["joule_s"] + prices["watt_s"]) * J_PER_KWH
    return f"prices, in time of a job: {gpus}, a kWh {kwh_s:,.3g} s"


def _span(span: Mapping[str, Any], begun_s: float) -> str:

    clock = "highest clock" if span["sm_mhz"] is None else f"{span['sm_mhz']:g} MHz"
    times = " to ".join(format_duration(max(0.0, span[key] - begun_s)) for key in ("from_s", "to_s"))
    gpus, nodes = (
        f"{span[word]} {name}{'s' * (span[word] != 1)}" for word, name in (("gpus", "GPU"), ("nodes", "node"))
    )
    return f"{times}: {gpus} on {nodes}, {clock}"
