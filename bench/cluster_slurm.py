"""Does the simulator tell how long jobs take on a real Slurm, and do the joules of its jobs add up?

    python -m bench.cluster slurm [--json] [--seed N] [--quick]

Ten jobs (``examples/train_elastic.py``, seeded) come to a virtual cluster of 4 × 8 GPUs under a real Slurm, one after
the other over about a minute, and are scheduled by ``joulewise cluster up`` with the priced policy. Before that, and
before anything of them is seen, the same jobs are simulated (``cluster/simulator``).

What the simulator is told was measured before: the seconds and joules of a step on every number of GPUs, by a short
probe of the script on one virtual node without Slurm; and what a start and a restart cost, by calibration jobs on the
same stack. No scored job is among either. ``--quick``: five shorter jobs.

Figures. ``slurm_jct_error``: of the mean completion time, simulated against real, relative to the real one;
``slurm_jct_error_each``: the mean of what each job is off by, relative to the mean completion time;
``energy_sum_error``: what Slurm's accounting shows of all jobs, plus what the agents call nobody's, against what the
virtual GPUs have really drawn and the hosts as declared. Progress goes to stderr; ``--json`` ends with one object
``{"figures": {…}, …}``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from joulewise.cluster.allocators.priced import priced
from joulewise.cluster.belief import Fabric
from joulewise.cluster.brought import belief_of, plain, points
from joulewise.cluster.engine import Order
from joulewise.cluster.limits import Limits
from joulewise.cluster.progress import read as read_progress
from joulewise.cluster.purse import Purse
from joulewise.cluster.round import Round
from joulewise.cluster.scheduler_status import JobStatus, Status
from joulewise.cluster.simulator import Submission, simulate
from joulewise.cluster.state import Costs, Kind, Way
from joulewise.core.errors import JoulewiseError, NotPermitted
from joulewise.core.event import Aimed, Event, Ordered, Turned
from joulewise.core.frontier import Point
from joulewise.core.knob import Setting
from joulewise.device.node import RunningNode, spawn
from joulewise.model import catalog
from joulewise.store import open_store
from joulewise.testing.slurm_stack import HOST_W, SlurmStack, slurm_stack

Out = Callable[[str], None]
MODEL, NODES, GPUS = "a100-sxm", 4, 8
SIZES = (1, 2, 4, 8)
STEP_S = 1.0
"""Of a step on one GPU, nothing set."""
ROUND_S = 2.0
_PERIOD_S = 0.25
WIDEST = 8
SCRIPT = Path(__file__).parents[1] / "examples" / "train_elastic.py"
APART_S = 1.3
"""Between calibration jobs: as scored ones, they come one by one."""
PROBE_S = 4.0
"""Of each probe, after its start."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A job: when it comes (seconds from the beginning), for how many GPUs it asks, and its steps."""

    name: str
    at_s: float
    gpus: int
    steps: int


@dataclass(frozen=True, slots=True)
class Probe:
    """What one step was seen to take, on a number of GPUs."""

    gpus: int
    step_s: float
    step_j: float


@dataclass(frozen=True, slots=True)
class Known:
    """What this Slurm was seen to take: until the scheduler sees a job that was handed in, and for starts."""

    seen_s: float
    costs: Costs


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = argparse.ArgumentParser(
        prog="bench.cluster slurm", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--json", action="store_true", help="end with one JSON object on stdout")
    options.add_argument("--quick", action="store_true", help="five shorter jobs")
    options.add_argument("--seed", type=int, default=1, help="of the jobs")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 2 where a part is missing."""
    options = parser().parse_args(arguments)
    out: Out = partial(print, file=sys.stderr, flush=True) if options.json else print
    try:
        said = run(options.seed, out, quick=options.quick)
    except JoulewiseError as error:
        print(f"bench.cluster slurm: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(said))
    else:
        print("\n".join(f"{name} {value:.4g}" for name, value in said["figures"].items()))
    return 0


def run(seed: int, out: Out, *, quick: bool = False) -> dict[str, Any]:
    """All of it. MissingPart without Slurm or the virtual NVML; NotPermitted where we are not root."""
    if os.geteuid() != 0:
        raise NotPermitted("a virtual Slurm site is root's to start")
    probes = probed(out)
    brought = plain(
        {each.gpus: [Point(each.step_s, each.step_j, Setting())] for each in probes}, gpu=MODEL, source="a probe"
    )
    step_s = {each.gpus: each.step_s for each in probes}
    jobs = drawn_jobs(seed, step_s, quick=quick)
    with tempfile.TemporaryDirectory(prefix="jw-bench-", dir="/tmp") as folder:
        frontier = Path(folder) / "frontier.json"
        frontier.write_text(json.dumps(brought))
        with slurm_stack(Path(folder) / "s", accounting=True, flags=_flags(Costs(2.0, 0.0, 3.0))) as stack:
            known = calibrated(stack, frontier, step_s, out)
            expected = predicted(jobs, brought, known)
            out(f"simulated: mean completion time {fmean(expected.values()):.1f} s of {len(jobs)} jobs")
            stack.flags = _flags(known.costs)
            stack.start_scheduler()
            real = played(stack, jobs, frontier, out)
    return scored(jobs, expected, real, known)


# What is measured before.


def probed(out: Out) -> list[Probe]:
    """The script on 1, 2, 4 and 8 GPUs of one virtual node, without Slurm, one after the other."""
    found = []
    with spawn(f"sim:{MODEL}*{GPUS}") as node, tempfile.TemporaryDirectory(prefix="jw-probe-") as folder:
        for gpus in SIZES:
            each = _probe(node, Path(folder) / str(gpus), gpus)
            out(f"probe: {gpus} GPUs take {each.step_s * 1000:.1f} ms and {each.step_j:.1f} J a step")
            found.append(each)
    return found


def _probe(node: RunningNode, folder: Path, gpus: int) -> Probe:
    environ = node.environment()
    environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(gpus)))
    command = [*_script(folder), "--steps", "1000000"]
    process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with node.client() as client:

            def now() -> tuple[float, float]:
                return time.monotonic(), sum(client.truth(gpu).energy_j for gpu in range(gpus))

            first, last = _progress_change(folder, now), None
            deadline_s = first[1][0] + PROBE_S
            while last is None or last[1][0] < deadline_s:
                last = _progress_change(folder, now)
    finally:
        process.kill()
        process.wait()
    steps = last[0] - first[0]
    return Probe(gpus, (last[1][0] - first[1][0]) / steps, (last[1][1] - first[1][1]) / steps)


def _progress_change(folder: Path, now: Callable[[], tuple[float, float]]) -> tuple[int, tuple[float, float]]:
    """The next step that the script tells of, and when that was. JoulewiseError where it tells nothing."""
    before = read_progress(folder)
    begun_s = time.monotonic()
    while time.monotonic() < begun_s + 60.0:
        seen = read_progress(folder)
        if seen is not None and seen.step > 2 and (before is None or seen.step != before.step):
            return seen.step, now()
        time.sleep(0.005)
    raise JoulewiseError("the probe's script makes no progress; see examples/train_elastic.py")


def calibrated(stack: SlurmStack, frontier: Path, step_s: Mapping[int, float], out: Out) -> Known:
    """Jobs of their own: how long until a job that was handed in is seen; what a start costs (all that a job takes
    beyond its steps, from the scheduler's word to its end); and what a stop and another start cost beyond that."""
    sizes = {f"c{number}": gpus for number, gpus in enumerate((8, 4, 8, 2, 8, 4))}
    steps = {name: round(6.0 / step_s[gpus]) for name, gpus in sizes.items()}
    for name, gpus in sizes.items():
        _submit(stack, Asked(name, 0.0, gpus, steps[name]), frontier, least=gpus, most=gpus)
        time.sleep(APART_S)
    _until_ended(stack, list(sizes))
    journal = _journal(stack)
    starts = [_took(journal, name) - steps[name] * step_s[gpus] for name, gpus in sizes.items()]
    # A cap that leaves no room stops them, and they go on when it is gone.
    long = 2 * round(8.0 / step_s[8])
    stopped = ["r0", "r1"]
    for name in stopped:
        _submit(stack, Asked(name, 0.0, 8, long), frontier, least=8, most=8)
    stack.until(lambda status: all(_job(status, name).done > 20 for name in stopped), "they run")
    stack.client.cap(NODES * (HOST_W + GPUS * catalog.load(MODEL).chip.deep_idle_w) + 50.0)
    stack.until(lambda status: all(_job(status, name).state == "waiting" for name in stopped), "they wait")
    time.sleep(2.0)
    stack.client.cap(None)
    _until_ended(stack, stopped)
    journal = _journal(stack)
    whole = [_held_s(journal, name) - long * step_s[8] for name in stopped]
    seen = [_seen_s(journal, name) for name in (*sizes, *stopped)]
    start_s, seen_s = fmean(starts), fmean(seen)
    restart_s = max(0.1, fmean(whole) - 2 * start_s)
    out(f"calibration: a job is seen after {seen_s:.2f} s (of {_listed(seen)})")
    out(f"calibration: a start costs {start_s:.2f} s (of {_listed(starts)})")
    out(f"calibration: a restart costs {restart_s:.2f} s more (of {_listed(whole)} in all)")
    return Known(seen_s, Costs(start_s, 0.0, restart_s))


def _until_ended(stack: SlurmStack, names: Sequence[str]) -> None:
    def ended(status: Status) -> bool:
        lost = [name for name in names if _job(status, name).state in ("failed", "cancelled")]
        if lost:
            raise JoulewiseError(f"job {lost[0]} did not end well; see {stack.log}")
        return all(_job(status, name).state == "ended" for name in names)

    stack.until(ended, f"{', '.join(names)} end", longest_s=400.0)


def _job(status: Status, name: str) -> JobStatus:
    return next((job for job in status.jobs if job.name == name), JobStatus(name, "", "", "", 0, {}))


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{each:.2f}" for each in values)


# What is scored.


def drawn_jobs(seed: int, step_s: Mapping[int, float], *, quick: bool) -> list[Asked]:
    """Ten jobs of 20 to 60 s on what they ask for, over a minute."""
    draw = random.Random(seed)
    count, span_s, low_s, high_s = (5, 20.0, 20.0, 45.0) if quick else (10, 60.0, 20.0, 60.0)
    times = sorted(draw.uniform(0.0, span_s) for _ in range(count))
    jobs = []
    for number, at_s in enumerate(times):
        gpus = draw.choice((2, 4, 4, 8))
        jobs.append(Asked(f"j{number}", at_s, gpus, round(draw.uniform(low_s, high_s) / step_s[gpus])))
    return jobs


class _Truth:
    """What really happens, as far as the simulator is told: what was probed."""

    def __init__(self, ways: Mapping[int, tuple[float, float]]) -> None:
        self._ways = ways

    def unit(self, way: Way, nodes: int) -> tuple[float, float]:  # noqa: ARG002 - none here has two
        return self._ways[way.gpus]


def predicted(jobs: Sequence[Asked], brought: Mapping[str, Any], known: Known) -> dict[str, float]:
    """Each job's completion time in the simulator, where it comes when it is seen."""
    model = catalog.load(MODEL)
    chip = model.chip
    kind = Kind(MODEL, NODES, GPUS, chip.deep_idle_w, HOST_W, top_mhz=chip.sm_max_mhz)
    fabric = Fabric(model, GPUS, kind=MODEL)
    truth = _Truth({gpus: (found[0].time_s, found[0].energy_j) for gpus, found in points(brought).items()})
    purse = Purse(round_s=ROUND_S)
    submissions = []
    for job in jobs:
        order = Order(
            job.name, ("true",), job.gpus, job.at_s + known.seen_s, "/c", 1, WIDEST, float(job.steps), brought
        )
        belief = belief_of(order, fabric, gpus_there=kind.gpus)
        submissions.append(Submission(job.name, job.at_s + known.seen_s, float(job.steps), job.gpus, truth, belief))
    outcome = simulate(
        submissions,
        (kind,),
        Round(priced(), purse=purse, calm=True, placer="together"),
        costs=known.costs,
        # The real one decides at once unless it has just done so; here rounds fall on multiples.
        period_s=_PERIOD_S,
        limits=Limits(),
    )
    return {job.name: known.seen_s + job.jct_s for job in outcome.jobs if job.jct_s is not None}


def played(stack: SlurmStack, jobs: Sequence[Asked], frontier: Path, out: Out) -> dict[str, Any]:
    """The same on the stack: completion times, and joules as told and as they were."""
    names = [job.name for job in jobs]
    time.sleep(2.0)
    stack.until(lambda status: status.idle_j > 0 and not any(n.used_gpus for n in status.nodes), "agents count")
    before_j = stack.unaccounted_j()
    began_s, began_j = time.monotonic(), stack.gpu_j()
    load = [os.getloadavg()[0]]
    first_s = time.time() + 1.0
    for job in jobs:
        time.sleep(max(0.0, first_s + job.at_s - time.time()))
        _submit(stack, job, frontier)
    _until_ended(stack, names)
    load.append(os.getloadavg()[0])
    journal = _journal(stack)
    jct_s = {name: _jct_s(journal, name) for name in names}
    starts = sum(_job(stack.client.status(), name).starts for name in names)
    deadline_s = time.monotonic() + 60.0
    while not set(names) <= (told := _accounted_j(stack)).keys():
        if time.monotonic() > deadline_s:
            raise JoulewiseError("not all jobs' energy is in Slurm's accounting after 60 s")
        time.sleep(0.2)
    time.sleep(1.0)
    true_j = stack.gpu_j() - began_j + NODES * HOST_W * (time.monotonic() - began_s)
    told_j = true_j + sum(told[name] for name in names) + stack.unaccounted_j() - before_j
    out(f"real: mean completion time {fmean(jct_s.values()):.1f} s, {starts} starts, {true_j / 1000:.0f} kJ")
    aims = {
        name: [
            f"{event.time_s - first_s:.1f} {event.what} {sum(event.facts['place'].values())}"
            for event in journal
            if isinstance(event, Aimed) and event.name == name
        ]
        for name in names
    }
    return {
        "jct_s": jct_s,
        "true_j": true_j,
        "told_j": told_j,
        "starts": starts,
        "load": max(load),
        "aims": aims,
        "came_s": {name: _ordered(journal, name) - first_s for name in names},
    }


def scored(
    jobs: Sequence[Asked], expected: Mapping[str, float], real: Mapping[str, Any], known: Known
) -> dict[str, Any]:
    """The figures."""
    jct_s: Mapping[str, float] = real["jct_s"]
    mean_s = fmean(jct_s.values())
    off = [expected[job.name] - jct_s[job.name] for job in jobs]
    return {
        "figures": {
            "slurm_jct_error": abs(fmean(off)) / mean_s,
            "slurm_jct_error_each": fmean(map(abs, off)) / mean_s,
            "energy_sum_error": abs(real["told_j"] - real["true_j"]) / real["true_j"],
            "slurm_jct_s": mean_s,
            "simulated_jct_s": fmean(expected.values()),
            "slurm_seen_s": known.seen_s,
            "slurm_start_s": known.costs.start_s,
            "slurm_restart_s": known.costs.restart_s,
            "restarts": real["starts"] - len(jobs),
        },
        "jobs": [
            {
                "name": job.name,
                "gpus": job.gpus,
                "at_s": job.at_s,
                "came_s": real["came_s"][job.name],
                "real_s": jct_s[job.name],
                "said_s": expected[job.name],
                "aims": real["aims"][job.name],
            }
            for job in jobs
        ],
        "load": real["load"],
    }


def _flags(costs: Costs) -> tuple[str, ...]:
    return (
        "--no-power-off",
        "--round",
        f"{ROUND_S:g}s",
        "--start",
        f"{costs.start_s:.3f}s",
        "--restart",
        f"{costs.restart_s:.3f}s",
    )


def _script(checkpoint: Path) -> list[str]:
    return [sys.executable, str(SCRIPT), "--step-seconds", f"{STEP_S:g}", "--checkpoint", str(checkpoint)]


def _submit(stack: SlurmStack, job: Asked, frontier: Path, *, least: int = 1, most: int = WIDEST) -> None:
    checkpoint = stack.work / f"{job.name}.checkpoint"
    command = [*_script(checkpoint), "--steps", str(job.steps)]
    sizes = ["--least", str(least), "--most", str(most)]
    known = ["--steps", str(job.steps), "--frontier", str(frontier)]
    stack.submit(job.name, command, job.gpus, "--checkpoint", str(checkpoint), *sizes, *known)


def _journal(stack: SlurmStack) -> list[Event]:
    """All that the scheduler has written down."""
    with closing(open_store(stack.folder / "home" / "joulewise.db")) as store:
        (name,) = store.streams("cluster/")
        return [event for _, event in store.journal(name).read()]


def _aims(journal: Sequence[Event], name: str, *what: str) -> list[float]:
    return [event.time_s for event in journal if isinstance(event, Aimed) and event.name == name and event.what in what]


def _ended_s(journal: Sequence[Event], name: str) -> float:
    return next(
        event.time_s for event in journal if isinstance(event, Turned) and event.name == name and event.what == "ended"
    )


def _took(journal: Sequence[Event], name: str) -> float:
    """From the word that starts a job to its end, in seconds."""
    return _ended_s(journal, name) - _aims(journal, name, "start")[0]


def _held_s(journal: Sequence[Event], name: str) -> float:
    """The same of one that was stopped once and started again, without its wait."""
    first_s, again_s = _aims(journal, name, "start")[:2]
    return (_aims(journal, name, "preempt")[0] - first_s) + (_ended_s(journal, name) - again_s)


def _jct_s(journal: Sequence[Event], name: str) -> float:
    """From submission to end."""
    return _ended_s(journal, name) - _ordered(journal, name)


def _seen_s(journal: Sequence[Event], name: str) -> float:
    """From submission until the scheduler has written it down."""
    seen_s = next(event.time_s for event in journal if isinstance(event, Ordered) and event.name == name)
    return seen_s - _ordered(journal, name)


def _ordered(journal: Sequence[Event], name: str) -> float:
    """When it was handed in, in seconds since 1970."""
    ordered = next(event for event in journal if isinstance(event, Ordered) and event.name == name)
    return float(ordered.facts["submitted_s"])


def _accounted_j(stack: SlurmStack) -> dict[str, float]:
    """Job → joules, as ``sacct`` shows them."""
    said = stack.site.commands.run("sacct", "-X", "-n", "-P", "-o", "jobname,admincomment")
    found = (re.fullmatch(r"(\S+)\|joulewise energy_j=(\S+).*", line) for line in said.splitlines())
    return {each[1]: float(each[2]) for each in found if each is not None}
