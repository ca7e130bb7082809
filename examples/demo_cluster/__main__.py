"""A cluster that saves: three jobs, real Slurm, an operator who cuts the power, and a report of what came of it.

make demo-cluster                    (about seven minutes; as root, with Slurm, which 'make system' installs)

Three floors of joulewise each find the time and energy of one job by clock: ``run --tune`` of a job, ``recur`` of a
series, ``plan`` of a pipeline. The jobs are handed in to a Slurm of four nodes with eight virtual A100s each, where
``joulewise cluster up`` shares GPUs and watts among them. The operator cuts the power by a fifth, then by a third,
then lifts the cap. Everything is done by the command line, as at a site. ``out/cluster.html`` tells it all.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import floors
from floors import Failed, Job
from watch import Watch

from joulewise.cluster.scheduler_status import Status
from joulewise.core.errors import JoulewiseError, MissingPart
from joulewise.core.units import format_duration, format_power
from joulewise.testing.slurm_stack import SlurmStack, slurm_stack

SMALL, LARGE = 0.8, 0.66
"""What the two cuts leave of what was drawn before the first."""
BEFORE_S, UNDER_S, AFTER_S = 35.0, 40.0, 25.0
LONGEST_S = 240.0
NEEDED = ("slurmctld", "slurmd", "squeue", "slurmdbd", "munged", "mariadbd")
BEGAN_S = time.monotonic()


def say(words: str) -> None:
    """A line on the terminal, with the time since the beginning."""
    print(f"{time.monotonic() - BEGAN_S:5.0f} s  {words}", flush=True)


def main() -> None:
    """From nothing to the report."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--out", type=Path, default=Path("out/cluster.html"))
    options.add_argument("--keep", type=Path, help="keep everything that was written in this folder")
    chosen = options.parse_args()
    out = chosen.out.resolve()
    out.parent.mkdir(parents=True, exist_ok=True)
    if os.geteuid() != 0:
        raise MissingPart(
            "the virtual Slurm site is root's to start: run it as root, or in a container; without, "
            "'joulewise cluster up --engine sim' simulates a cluster (docs/cluster-site.md, 'Try it without a cluster')"
        )
    if missing := [name for name in NEEDED if shutil.which(name) is None]:
        raise MissingPart(f"Slurm is not all here ({', '.join(missing)}): 'make system' installs it on Debian")
    folder = Path(tempfile.mkdtemp(prefix="jwdemo")) if chosen.keep is None else chosen.keep.resolve()
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    try:
        home = folder / "site" / "home"
        home.mkdir(parents=True, exist_ok=True)
        jobs = from_three_floors(folder, home)
        say("starting Slurm with its accounting: 4 nodes of 8 virtual A100s, a daemon and an agent on each …")
        with slurm_stack(folder / "site", accounting=True) as stack:
            told = played(stack, jobs, folder)
            accounts = accounted(stack, folder)
        report(out, told, accounts, home)
    finally:
        if chosen.keep is None:
            shutil.rmtree(folder, ignore_errors=True)


def from_three_floors(folder: Path, home: Path) -> list[Job]:
    """The three jobs, each with its frontier; two at a time, since there may be two processors."""
    work = folder / "floors"
    work.mkdir(exist_ok=True)
    environ = {**floors.environment(), "JOULEWISE_HOME": str(home)}

    def plan_and_series() -> list[Job]:
        say("iteration: a pipeline of 8 stages is measured at 8 clocks, then 'joulewise plan solve' …")
        plan = floors.planned(environ, work, steps=85)
        say("series: three nights of 'joulewise recur run', real training to a validation loss …")
        return [plan, floors.series(environ, work, nights=3)]

    with ThreadPoolExecutor() as pool:
        say("job: 'joulewise run --tune' of a vision model on 8 virtual A100s, 20 times as fast as life …")
        tuned = pool.submit(floors.tuned, environ, work, steps=380, tuned_steps=1600)
        others = pool.submit(plan_and_series)
        jobs = [tuned.result(), *others.result()]
    for job in jobs:
        say(f"{job.floor}: {job.says}")
    return jobs


def played(stack: SlurmStack, jobs: list[Job], folder: Path) -> Watch:
    """Hand the jobs in, cut the cap twice, lift it, and wait for the end."""
    say(f"the scheduler runs; 'JOULEWISE_CLUSTER={stack.server} joulewise cluster status --live' shows it from outside")
    watch = Watch(stack, folder)
    try:
        for job in jobs:
            where = stack.work / job.name
            flags = [*job.flags, "--checkpoint", str(where)]
            result = ["--checkpoint", str(where), "--result", str(stack.work / f"{job.name}.result")]
            number = stack.submit(job.name, [*job.command, *result], job.gpus, *flags)
            say(f"'joulewise cluster submit --name {job.name} --gpus {job.gpus} …': Slurm has it as job {number}")
        stack.until(lambda status: all_run(status, jobs), "all jobs run")
        say("all three run; left alone for a while, to see what they draw")
        time.sleep(BEFORE_S)
        shown(stack)
        full_w = watch.mean_w(15.0)
        cut(stack, watch, SMALL * full_w, f"{1 - SMALL:.0%} less than the {format_power(full_w)} that are drawn")
        time.sleep(UNDER_S)
        shown(stack)
        starts = {job.name: job.starts for job in status_of(stack).jobs}
        cut(stack, watch, LARGE * full_w, f"{1 - LARGE:.0%} less")
        wait_for_resize(stack, starts)
        time.sleep(UNDER_S)
        shown(stack)
        for job in jobs:
            say(f"'joulewise cluster explain {job.name}': {' '.join(stack.client.why(job.name).says.split())}")
        stack.call("cap", "none")
        say("the operator lifts the cap")
        time.sleep(AFTER_S)
        shown(stack)
        say("waiting for the jobs to end …")
        stack.until(ended, "all jobs end", longest_s=LONGEST_S)
        time.sleep(5.0)  # the last words on their energy
    finally:
        watch.close()
    for job in jobs:
        say(f"{job.name}: {same_result(stack, job)}")
    return watch


def same_result(stack: SlurmStack, job: Job) -> str:
    """How a job ended; where it can be done again without GPUs, whether a run that nobody disturbs ends the same."""
    lines = [json.loads(line) for line in (stack.work / f"{job.name}.result").read_text().splitlines()]
    if len(lines) != 1:
        raise Failed(f"{job.name} has ended {len(lines)} times, not once")
    says = f"{lines[0]['steps']} steps in {lines[0]['starts']} starts, loss {lines[0]['loss']:.4f}"
    if floors.ELASTIC not in job.command:
        return says
    again = stack.work / f"{job.name}.again"
    flags = ["--checkpoint", str(stack.work / f"{job.name}-again"), "--result", str(again)]
    floors.called([*job.command, *flags], floors.environment(), stack.work, log=f"{job.name}.txt")
    if json.loads(again.read_text())["sha256"] != lines[0]["sha256"]:
        raise Failed(f"{job.name} has ended with other weights than a run that nobody disturbs")
    return f"{says}; bit by bit the weights of a run that nobody disturbed"


def all_run(status: Status, jobs: list[Job]) -> bool:
    """Whether these jobs are there, and run."""
    return {job.name for job in jobs} <= {job.name for job in status.jobs if job.state == "running"}


def ended(status: Status) -> bool:
    """Whether all jobs are over."""
    return all(job.ended_s is not None for job in status.jobs)


def status_of(stack: SlurmStack) -> Status:
    """How all stands."""
    return stack.client.status()


def cut(stack: SlurmStack, watch: Watch, cap_w: float, why: str) -> None:
    """The operator's word, and how soon the meter shows it."""
    at_s = time.time()
    made = stack.call("cap", f"{cap_w:.0f}W")
    if made.returncode:
        raise Failed(made.stderr.strip())
    say(f"'joulewise cluster cap {cap_w:.0f}W': {why}")
    while time.time() < at_s + 30.0:
        time.sleep(0.1)
        if watch.mean_w(1.0) <= cap_w:
            break
    took_s = time.time() - at_s
    took_s = time.time() - at_s
    say(f"the meter shows {format_power(watch.mean_w(1.0))} after {took_s:.1f} s, the command's own start included")


def wait_for_resize(stack: SlurmStack, starts: dict[str, int]) -> None:
    """Until a job has been started anew and all that may run do; what happens is said."""
    until_s = time.monotonic() + 60.0
    while time.monotonic() < until_s:
        status = status_of(stack)
        moved = [job for job in status.jobs if job.starts > starts.get(job.name, 0) and job.state == "running"]
        if moved:
            for job in moved:
                say(f"{job.name} was resized: it runs on {job.gpus} GPUs now, from its checkpoint")
            return
        time.sleep(0.5)
    say("no job had to be resized")


def shown(stack: SlurmStack) -> None:
    """A line for the cluster, and one for each job."""
    status = status_of(stack)
    prices = f"a GPU-second costs {max(status.prices.gpu_s.values(), default=0.0):.3g} s"
    prices += f", a kW-second {1000 * status.prices.watt_s:.3g} s of somebody's completion time"
    cap = "no cap" if status.cap_w is None else f"cap {format_power(status.cap_w)}"
    say(f"{format_power(status.power_w)}, {cap}; {prices}")
    for job in status.jobs:
        setting = ", ".join(f"{name} {value:g}" for name, value in job.setting.items()) or "nothing set"
        say(f"   {job.name}: {job.state}, {job.gpus} GPUs, {setting}, step {job.done:.0f} of {job.work or 0:.0f}")


def accounted(stack: SlurmStack, folder: Path) -> Path:
    """What Slurm's own accounting says of the jobs."""
    path = folder / "sacct.txt"
    words = ["sacct", "-nPX", "-o", "jobname,jobid,state,elapsed,admincomment"]
    made = subprocess.run(words, env=stack.environment, capture_output=True, text=True, check=False)
    path.write_text(made.stdout)
    for line in made.stdout.strip().splitlines():
        say(f"sacct: {line}")
    return path


def report(out: Path, told: Watch, accounts: Path, home: Path) -> None:
    """The page, by the verb that a site would use."""
    words = ["cluster", "report", str(told.watched), "--meter", str(told.meter), "--accounts", str(accounts)]
    environ = {**os.environ, "JOULEWISE_HOME": str(home)}
    made = subprocess.run(
        floors.joulewise(*words, "--out", str(out)), env=environ, capture_output=True, text=True, check=False
    )
    if made.returncode:
        raise Failed(made.stderr.strip())
    say(made.stdout.strip() or made.stderr.strip())
    say(f"the report is {out}; all of it took {format_duration(time.monotonic() - BEGAN_S)}")


if __name__ == "__main__":
    try:
        main()
    except (JoulewiseError, Failed) as error:
        raise SystemExit(f"demo-cluster: {error}") from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
