"""The few things that are done to Slurm's jobs and nodes, each only while this scheduler is the one in charge.

What it is: one method an act, each one command or two, under the fence. ``Refused`` where Slurm answers no: mostly a
job that changed under our hands, and the next look shows how.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from joulewise.cluster.engine import Place
from joulewise.cluster.engines import slurm_energy
from joulewise.cluster.engines.slurm_commands import Refused, SlurmCommands
from joulewise.cluster.engines.slurm_fence import NAME, Fence
from joulewise.cluster.engines.slurm_text import SlurmJob

_LONGEST_WHY = 500


class SlurmActs:
    """``where``: the fence's folder; None for Slurm's StateSaveLocation. ``partition`` has a fence of its own."""

    def __init__(
        self, commands: SlurmCommands, where: Path | None, partition: str | None, cpus_per_gpu: int | None
    ) -> None:
        self._commands = commands
        self._where = where
        self._partition = partition
        self._cpus_per_gpu = cpus_per_gpu
        self._kept: Fence | None = None
        self._kill_wait_s: float | None = None

    @property
    def fence(self) -> Fence:
        """Which scheduler may act. EngineLost where Slurm cannot be asked where its file is."""
        if self._kept is None:
            folder = self._where
            if folder is None:
                folder = Path(self.configured("StateSaveLocation") or "/nowhere")
            self._kept = Fence(folder / (NAME if self._partition is None else f"{self._partition}.{NAME}"))
        return self._kept

    @property
    def leads(self) -> bool:
        """Whether an epoch was taken here: else this engine only looks and hands jobs in."""
        return self._kept is not None and self._kept.epoch > 0

    def configured(self, name: str) -> str:
        """A setting of slurm.conf, as the controller has it; empty where it has none."""
        said = re.search(rf"^{name}\s*=\s*(.*?)\s*$", self._commands.run("scontrol", "show", "config"), re.M)
        return said[1] if said else ""

    @property
    def kill_wait_s(self) -> float:
        """How long Slurm lets a process live that it told to end."""
        if self._kill_wait_s is None:
            said = re.match(r"\d+", self.configured("KillWait"))
            self._kill_wait_s = float(said[0]) if said else 30.0  # Slurm's own default
        return self._kill_wait_s

    def check(self) -> None:
        """Fenced where another scheduler is in charge."""
        with self.fence.acting():
            pass

    def hold(self, job: SlurmJob) -> None:
        """Nobody but an administrator lets it start."""
        self._run("scontrol", "hold", str(job.id))

    def ask_to_save(self, job: SlurmJob) -> None:
        """SIGUSR1 to its steps, not to its batch script."""
        self._run("scancel", "--signal=USR1", str(job.id))

    def requeue(self, job: SlurmJob) -> None:
        """End its processes and let it wait, held. One that has ended meanwhile stays so: it must not run twice."""
        self._run("scontrol", "requeuehold", "Incomplete", str(job.id))

    def release(self, job: SlurmJob, place: Place) -> None:
        """It shall start on ``place`` now."""
        nodes, gpus = len(place), next(iter(place.values()))
        self._run(
            "scontrol",
            "update",
            f"JobId={job.id}",
            f"NumNodes={nodes}-{nodes}",
            f"NumTasks={nodes}",
            f"NumCPUs={nodes * gpus * self._cpus_per_gpu if self._cpus_per_gpu else nodes}",
            f"TresPerNode=gres:gpu:{gpus}",
            f"ReqNodeList={','.join(place)}",
            "StartTime=now",
        )
        self._run("scontrol", "release", str(job.id))

    def end(self, job: SlurmJob, why: str) -> None:
        """For good; ``why`` is written where its user looks."""
        said = slurm_energy.comment(job.admin_comment, why=re.sub(r"\s+", " ", why)[:_LONGEST_WHY])
        with contextlib.suppress(Refused):
            self.comment(job, said)
        with contextlib.suppress(Refused):
            self._run("scancel", str(job.id))

    def comment(self, job: SlurmJob, text: str) -> None:
        """Its administrator's comment, while Slurm's controller has it as not done."""
        self._run("scontrol", "update", f"JobId={job.id}", f"AdminComment={text}")

    def rename(self, job: SlurmJob, name: str) -> None:
        """What Slurm, and so its user, calls it."""
        self._run("scontrol", "update", f"JobId={job.id}", f"JobName={name}")

    def comment_past(self, job: SlurmJob, text: str) -> None:
        """The same in accounting, for one that is done."""
        self._run("sacctmgr", "-i", "modify", "job", "where", f"jobid={job.id}", "set", f"AdminComment={text}")

    def power(self, node: str, *, on: bool) -> None:
        """Have Slurm switch a node, by the site's program."""
        self._run("scontrol", "update", f"NodeName={node}", f"State=power_{'up' if on else 'down'}")

    def _run(self, *words: str) -> None:
        with self.fence.acting():
            self._commands.run(*words)
