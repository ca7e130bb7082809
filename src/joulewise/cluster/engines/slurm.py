"""Slurm behind the engine protocol: held jobs, started, resized and preempted by what ``scontrol`` can do.

What it is: Slurm is the durable queue. A job is an ``sbatch --hold`` whose comment is the order; everything after is
said to that job: where it shall run, when it shall go. A resize is: ask the script to save (SIGUSR1), requeue it held,
say the new size, release it; the job keeps its id. All of it is steps (``slurm_steps``) that ``wait`` takes one by one
from what Slurm shows, so a scheduler that died half-way is followed by one that goes on.

What it is not: a second queue, or a keeper of results; what is wanted is held in memory only, and said again by the
scheduler's next life.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from joulewise.cluster import progress
from joulewise.cluster.engine import DONE, Happened, JobSeen, NodeSeen, Order, Place
from joulewise.cluster.engines import slurm_energy, slurm_order, slurm_text
from joulewise.cluster.engines.slurm_acts import SlurmActs
from joulewise.cluster.engines.slurm_commands import TESTED, Refused, SlurmCommands
from joulewise.cluster.engines.slurm_news import SlurmNews
from joulewise.cluster.engines.slurm_steps import Aim, Step, next_step
from joulewise.cluster.engines.slurm_text import SlurmJob, SlurmNode
from joulewise.cluster.engines.slurm_view import Mine, SlurmView, View, user_name
from joulewise.core.caller import Caller
from joulewise.core.errors import BadSpec

_QUICK_S = 0.1  # between two looks while something is under way
_ORPHANS_S = 3.0  # beyond KillWait, for nodes to end what a new slurmctld does not know
_UNDER_WAY_S = 3.0  # so long after a step


class SlurmEngine:
    """A Slurm cluster, or one ``partition`` of it.

    ``grace_s``: how long a script may take to save before it is requeued all the same. ``poll_s``: how often Slurm is
    looked at while nothing is under way. ``cpus_per_gpu``: None for one CPU a node. ``options`` are further words for
    ``sbatch`` (``--account=…``). ``fence``: the folder of the file that tells schedulers apart, by default Slurm's
    StateSaveLocation. ``now`` gives seconds since 1970.
    """

    def __init__(
        self,
        *,
        partition: str | None = None,
        grace_s: float = 60.0,
        poll_s: float = 1.0,
        cpus_per_gpu: int | None = None,
        options: Sequence[str] = (),
        commands: SlurmCommands | None = None,
        fence: Path | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.commands = SlurmCommands() if commands is None else commands
        self._partition = partition
        self._grace_s = grace_s
        self._poll_s = poll_s
        self._cpus_per_gpu = cpus_per_gpu
        self._options = tuple(options)
        self._now = now
        self._view = SlurmView(self.commands, partition)
        self._acts = SlurmActs(self.commands, fence, partition, cpus_per_gpu)
        self._news = SlurmNews()
        self._aims: dict[str, Aim] = {}
        self._switches: dict[str, bool] = {}
        """Node → whether it shall be on, until it is."""
        self._ran_on: dict[str, Place] = {}
        self._unheard_s: dict[str, float] = {}
        """Node → when slurmctld last did not hear of it."""
        self._silent: frozenset[str] = frozenset()
        """Those that it does not hear of now."""
        self._given_up: frozenset[str] = frozenset()
        """Nodes that Slurm takes for dead: nothing runs there that could be waited for."""
        self._said: dict[int, str] = {}
        """Job, by number: its name may be another's later. What its user should know: why it was stopped, or what Slurm
        refused."""
        self._accounted: dict[int, str] = {}
        """What was written of jobs that are done: the controller goes on showing what was there before."""
        self._busy_until_s = 0.0
        self._lock = threading.RLock()

    def ready(self) -> tuple[str, ...]:
        """Look once whether all that is needed is there; notes that an operator should read.

        MissingPart, EngineLost or BadSpec where Slurm cannot be used from here.
        """
        version = self.commands.version()
        notes = []
        if version != TESTED:
            notes.append(f"Slurm {version[0]}.{version[1]:02} is newer than 22.05, the one that was tested")
        self._view.look()
        if not self._view.accounting:
            notes.append("no slurmdbd: 'sacct' shows no energies, and jobs that ended are forgotten after MinJobAge")
        if not any(node.gpus for node in self._nodes()):
            raise BadSpec(f"no node of {self._partition or 'this Slurm'} has GPUs; see GresTypes and gres.conf")
        return tuple(notes)

    def enforced(self) -> frozenset[str]:
        """As ``SlurmView.enforced``."""
        return self._view.enforced()

    def take(self, epoch: int) -> None:
        """Only the scheduler with the highest ``epoch`` acts from now on; any other's acts raise ``Fenced``."""
        with self._lock:
            self._acts.fence.take(epoch)
            self._view.remember()
            self._news.since(self._view.look(), self._nodes(), self._now(), self._aims, self._said)

    def nodes(self) -> tuple[NodeSeen, ...]:
        """All nodes, in a fixed order."""
        with self._lock:
            foreign = self._view.look().foreign
        return tuple(
            NodeSeen(node.name, node.gpus, node.state, node.kind, min(node.gpus, foreign.get(node.name, 0)), node.why)
            for node in self._nodes()
        )

    def jobs(self) -> tuple[JobSeen, ...]:
        """All our jobs that Slurm, or its accounting, still knows, in order of submission."""
        with self._lock:
            return tuple(self._seen(name, each) for name, each in self._view.look().mine.items())

    def submit(self, order: Order, by: Caller | None = None) -> str:  # noqa: ARG002
        """Hand a job in, held; its id. Runs as the calling user, whoever ``by`` is, and needs no scheduler."""
        sizes = [node.gpus for node in self._nodes() if node.gpus]
        slurm_order.check(order, sizes)
        with self._lock:
            view = self._view.look()
            before = view.of_user(os.geteuid(), order.name)
            if before is not None and before.found.digest == slurm_order.digest(order):
                return str(before.slurm.id)
            for each in (before, view.mine.get(order.name)):
                if each is not None and each.slurm.state not in DONE:
                    whose = "" if each is before else f" of user {user_name(each.slurm.uid)}"
                    raise BadSpec(
                        f"a job{whose} called {order.name} is {each.slurm.state} already (Slurm's {each.slurm.id}); "
                        f"take another name{'' if whose else ', or stop that one'}"
                    )
            folder, comment = slurm_order.written(order, self._now(), self.commands.environ)
            return self._hand_in(order, folder / "job.sh", comment, sizes)

    def start(self, name: str, place: Place) -> None:
        """A job that waits shall run there."""
        self._aim(name, place)

    def resize(self, name: str, place: Place) -> None:
        """A job that runs shall save, stop, and run there instead, under the same id."""
        self._aim(name, place)

    def preempt(self, name: str) -> None:
        """A job that runs shall save, stop and wait, under the same id."""
        self._aim(name, None)

    def stop(self, name: str, why: str) -> None:
        """A job shall end now, for good; ``why`` is written where ``sacct`` and ``scontrol show job`` show it."""
        with self._lock:
            job = self._mine(name).slurm
            self._aims.pop(name, None)
            if job.state in DONE:
                return
            self._said[job.id] = why
            self._acts.end(job, why)
            self._busy()

    def power(self, node: str, *, on: bool) -> None:
        """Switch a node. One with a job on it is not switched off: ``BadSpec``."""
        with self._lock:
            nodes = self._nodes()
            self._node(node, nodes)
            if not on:
                view = self._view.look()
                busy = [each.name for each in view.mine.values() if node in each.slurm.place]
                if busy or view.foreign.get(node):
                    raise BadSpec(f"{node} is not switched off: {', '.join(busy) or 'a job of others'} runs on it")
            self._acts.check()
            self._switches[node] = on
            self._switch(nodes)
            self._busy()

    def wait(self, longest_s: float) -> tuple[Happened, ...]:
        """What happened since the last call; returns as soon as something did, else after ``longest_s``."""
        until_s = time.monotonic() + longest_s
        while True:
            with self._lock:
                view, nodes = self._view.look(), self._nodes()
                happened = self._news.since(view, nodes, self._now(), self._aims, self._said)
                self._watch_silence(nodes)
                self._tend(view, nodes)
                for name, aim in list(self._aims.items()):
                    self._carry(name, aim, view)
                self._switch(nodes)  # last: a refusal must not keep jobs from their aims
            left_s = until_s - time.monotonic()
            if happened or left_s <= 0:
                return happened
            quick = time.monotonic() < self._busy_until_s
            time.sleep(min(left_s, min(_QUICK_S, self._poll_s) if quick else self._poll_s))

    def account(self, name: str, energy_j: float, id: str = "") -> None:
        """Write a job's energy so far into its administrator's comment; after its end by way of slurmdbd, if there."""
        with self._lock:
            job = self._numbered(name, id)
            self._acts.check()
            comment = slurm_energy.comment(job.admin_comment, energy_j=energy_j)
            if comment in (job.admin_comment, self._accounted.get(job.id)):
                return
            if job.state not in DONE:
                with contextlib.suppress(Refused):  # it ended meanwhile
                    self._acts.comment(job, comment)
                    return
            if self._view.accounting:
                self._acts.comment_past(job, comment)
                self._accounted[job.id] = comment

    def _hand_in(self, order: Order, batch: Path, comment: str, sizes: Sequence[int], *user: str) -> str:
        nodes, gpus = slurm_order.split(order.gpus, sizes)
        words = slurm_order.words(order, batch, comment, nodes, gpus)
        where = [] if self._partition is None else [f"--partition={self._partition}"]
        cpus = [] if self._cpus_per_gpu is None else [f"--cpus-per-gpu={self._cpus_per_gpu}"]
        said = self.commands.run("sbatch", *user, *where, *cpus, *self._options, *words)
        return said.strip().partition(";")[0]

    def _hand_in_again(self, each: Mine, sizes: Sequence[int]) -> None:
        """For its user, with the environment that it was first handed in with, or (``NONE``) as after a login: never
        with this process's own. The script is made anew: what lies in the user's folder is not for root to open."""
        self._acts.check()
        order, uid, gid = each.found.order, each.slurm.uid, each.slurm.gid
        user: list[str] = []
        if uid != os.geteuid():  # without its group, sbatch (22.05) gives the job the group of whoever hands it in
            user = [f"--uid={uid}", f"--gid={gid}"]
        if not order.command or (user and gid is None):
            self._said[each.slurm.id] = "Slurm forgot it, and its order cannot be read any more; hand it in again"
            return
        environ = slurm_order.kept_environ(each.found.folder, uid)
        with tempfile.TemporaryDirectory(prefix="joulewise-") as folder:
            batch, kept = Path(folder) / "job.sh", Path(folder) / "environ"
            batch.write_text(slurm_order.script(order, each.found.folder), encoding="utf-8")
            kept.write_bytes(slurm_order.packed_environ(environ or {}))
            export = f"--export-file={kept}" if environ else "--export=NONE"
            paid = [f"--{name}={of}" for name, of in (("account", each.order.account), ("qos", each.order.qos)) if of]
            self._hand_in(order, batch, each.found.comment, sizes, *user, *paid, export)

    def _aim(self, name: str, place: Place | None) -> None:
        with self._lock:
            view, nodes = self._view.look(), self._nodes()
            self._watch_silence(nodes)
            each = view.mine.get(name)
            if each is None or each.slurm.state in DONE:
                raise BadSpec(f"no job called {name} waits or runs in Slurm; see 'joulewise cluster status'")
            job, order = each.slurm, each.order
            if place is not None:
                self._check(order, place, nodes)
                if job.state in ("running", "leaving") and not order.elastic and dict(place) != dict(job.place):
                    raise BadSpec(
                        f"job {name} saves no checkpoint, so it cannot be resized; submit it with --checkpoint FOLDER, "
                        "or leave it as it is"
                    )
            self._acts.check()  # said to the caller now, not in some later wait
            before = self._aims.get(name)
            if before is None or before.place != place:
                aim = self._aims[name] = Aim(None if place is None else dict(place))
                if before is not None:  # it was asked already, and the time it has had counts
                    aim.asked_s, aim.last_asked_s = before.asked_s, before.last_asked_s
                    aim.waiting_s, aim.running_s = before.waiting_s, before.running_s
            self._said.pop(job.id, None)
            self._busy()
            self._carry(name, self._aims[name], view)

    def _check(self, order: Order, place: Place, nodes: Sequence[SlurmNode]) -> None:
        counts = set(place.values())
        if len(counts) != 1 or min(counts) < 1:
            raise BadSpec(
                f"job {order.name} cannot run on {_places(place)}: Slurm gives every node of a job the same number of "
                "GPUs; use one node, or several alike"
            )
        for name, count in place.items():
            if count > (there := self._node(name, nodes).gpus):
                raise BadSpec(f"job {order.name} cannot have {count} GPUs on {name}, which has {there}")

    def _carry(self, name: str, aim: Aim, view: View) -> None:
        """Take the next step towards an aim."""
        each = view.mine.get(name)
        if each is None:
            del self._aims[name]
            return
        job, order = each.slurm, each.order
        now_s = time.monotonic()
        if job.state != "waiting":
            aim.waiting_s = None
        elif aim.waiting_s is None:
            aim.waiting_s = now_s
            aim.asked_s = aim.last_asked_s = None  # the start that was asked is over, whoever ended it
        if job.state != "running":
            aim.running_s = None
        elif aim.running_s is None:
            aim.running_s = now_s
        asked = order.elastic and job.state == "running"
        step = next_step(
            job,
            aim,
            now_s=now_s,
            unix_s=self._now(),
            saves=order.elastic,
            saved=asked and _saved(order, job),
            grace_s=self._grace_s,
            listens=asked and slurm_order.listen(each.found, job.id, job.restarts, len(job.place), job.uid),
            sure=not self._may_run(name, aim),
        )
        if step is Step.REACHED:
            del self._aims[name]
            return
        if step is Step.LATER and job.state == "waiting" and not job.held:
            return  # Slurm's turn, and that may take as long as a node boots
        if job.state == "running" and self._silent & job.place.keys():
            # Slurm hears of its node again, or gives it up and requeues the job. One that we requeue meanwhile loses
            # its GPUs in Slurm's books (22.05.8: "node offset invalid"), and its next start fails.
            return
        self._busy()
        try:
            self._do(step, job, aim, now_s)
            self._said.pop(job.id, None)
        except Refused as refusal:
            self._said[job.id] = str(refusal)

    def _do(self, step: Step, job: SlurmJob, aim: Aim, now_s: float) -> None:
        if step is Step.HOLD:
            self._acts.hold(job)
        elif step is Step.SIGNAL:
            aim.asked_s = now_s if aim.asked_s is None else aim.asked_s
            aim.last_asked_s = now_s
            self._acts.ask_to_save(job)
        elif step is Step.REQUEUE:
            self._acts.requeue(job)
            aim.asked_s = aim.last_asked_s = None
        elif step is Step.RELEASE and aim.place is not None:
            self._acts.release(job, aim.place)

    def _watch_silence(self, nodes: Sequence[SlurmNode]) -> None:
        silent = [node for node in nodes if node.words & {"UNKNOWN", "NOT_RESPONDING"}]
        self._unheard_s |= {node.name: time.monotonic() for node in silent}
        self._silent = frozenset(node.name for node in silent)
        self._given_up = frozenset(node.name for node in silent if "DOWN" in node.words)

    def _may_run(self, name: str, aim: Aim) -> bool:
        """Whether processes may be left of what slurmctld, killed and started again, has forgotten to run, or has given
        up with a node that was silent for too long and is back.

        It ends them when their node reports, which takes up to KillWait. A job that came to such a node sooner under
        the same number would be a duplicate to slurmd, and Slurm would drain the node.
        """
        ran_on = {*self._ran_on.get(name, ())} - self._given_up
        concerned = {*ran_on, *(aim.place or ())} & self._unheard_s.keys()
        if not concerned:
            return False
        heard_s = max(self._unheard_s[node] for node in concerned)
        return time.monotonic() - heard_s < self._acts.kill_wait_s + _ORPHANS_S

    def _tend(self, view: View, nodes: Sequence[SlurmNode]) -> None:
        """What no job may be: released by its user, started by Slurm alone after a node died, there twice, or lost."""
        for name, each in view.mine.items():
            if each.slurm.place:
                self._ran_on[name] = each.slurm.place
        there = {each.slurm.id for each in (*view.mine.values(), *view.forgotten)}
        self._said = {number: why for number, why in self._said.items() if number in there}
        if not self._acts.leads:
            return
        for name, each in view.mine.items():
            job = each.slurm
            if job.state == "waiting" and name not in self._aims and (not job.held or job.held_by_user):
                with contextlib.suppress(Refused):
                    self._acts.hold(job)
            if "@" in name and job.name != name and job.state not in DONE:
                with contextlib.suppress(Refused):
                    self._acts.rename(job, name)
        for each, first in view.doubles:
            self._acts.end(each.slurm, f"job {first} has this name already")
        if view.forgotten and not any("UNKNOWN" in node.words for node in nodes):
            # Every node has reported, and slurmctld has told them to end what it does not know.
            sizes = [node.gpus for node in nodes if node.gpus]
            for each in view.forgotten:
                if each.found.order.gpus in slurm_order.possible(sizes):
                    try:
                        self._hand_in_again(each, sizes)
                    except Refused as refusal:  # one job's matter, and no reason to let the others wait
                        self._said[each.slurm.id] = str(refusal)
                    except OSError as fault:  # a full disk, which any user can make of /tmp
                        why = (fault.strerror or str(fault)).lower()
                        says = f"Slurm forgot it, and its script cannot be written: {why}; see TMPDIR"
                        self._said[each.slurm.id] = says

    def _switch(self, nodes: Sequence[SlurmNode]) -> None:
        """Say to Slurm which nodes shall be on or off. A node that is still going off would not hear that it shall
        come back (22.05 forgets it), so that is said when it is off."""
        for node in nodes:
            on = self._switches.get(node.name)
            if on is None:
                continue
            if node.state in (("up", "booting") if on else ("off",)):
                del self._switches[node.name]
            elif not (on and node.words & {"POWER_DOWN", "POWERING_DOWN"}):
                try:
                    self._acts.power(node.name, on=on)
                except Refused as refusal:
                    del self._switches[node.name]
                    raise BadSpec(
                        f"{node.name} cannot be switched: {refusal}; see SuspendProgram and SuspendTime in slurm.conf"
                    ) from refusal

    def _seen(self, name: str, each: Mine) -> JobSeen:
        seen = each.seen(self._said.get(each.slurm.id, ""))
        aim = self._aims.get(name)
        if seen.state == "running" and aim is not None and dict(aim.place or {}) != dict(seen.place):
            return replace(seen, state="leaving", since_s=None, exit_code=None)
        return seen

    def _mine(self, name: str) -> Mine:
        found = self._view.look().mine.get(name)
        if found is None:
            raise BadSpec(f"Slurm knows no job of ours called {name}; see 'joulewise cluster status'")
        return found

    def _numbered(self, name: str, id_: str) -> SlurmJob:
        """The job with this id, also where another has its name now; empty: the one that has it."""
        job = self._mine(name).slurm
        if id_ in ("", str(job.id)):
            return job
        for each in slurm_text.jobs(self.commands.answer("squeue", "--states=all")):
            if str(each.id) == id_:
                return each
        raise BadSpec(f"Slurm has forgotten job {id_}, which was called {name}; {job.id} has that name now")

    def _nodes(self) -> list[SlurmNode]:
        answer = self.commands.answer("sinfo")
        if "nodes" not in answer:  # later versions list partitions here, and nodes elsewhere
            answer = self.commands.answer("scontrol", "show", "nodes")
        nodes = slurm_text.nodes(answer)
        return [node for node in nodes if self._partition is None or self._partition in node.partitions]

    def _node(self, name: str, nodes: Sequence[SlurmNode]) -> SlurmNode:
        for node in nodes:
            if node.name == name:
                return node
        raise BadSpec(f"no node of this cluster is called {name}; there are {', '.join(each.name for each in nodes)}")

    def _busy(self) -> None:
        self._busy_until_s = time.monotonic() + _UNDER_WAY_S


def _saved(order: Order, job: SlurmJob) -> bool:
    """Whether its script has saved and paused in this start, as its progress file says."""
    seen = progress.read(Path(order.directory or ".") / (order.checkpoint or "."))
    return seen is not None and seen.safe and job.start_s is not None and seen.time_s >= job.start_s


def _places(place: Place) -> str:
    return ", ".join(f"{count} of {node}" for node, count in place.items()) or "no node"
