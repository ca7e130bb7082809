"""A real small training that can be stopped at any time and go on with another number of GPUs, to the very same bits.

python examples/train_elastic.py --steps 500 --checkpoint checkpoints --result result.jsonl
srun -N $SLURM_JOB_NUM_NODES -n $SLURM_JOB_NUM_NODES python examples/train_elastic.py --checkpoint checkpoints

In a Slurm job it is one task a node, said anew at each start since the number of nodes may be another.

A network of two layers learns to tell made-up points apart, with real gradients and a real loss, in numpy alone. The
global batch is fixed and cut into fixed shards; each task of the job does its part of them, and rank 0 sums them in the
order of the shards, so the final weights are the same for any number of GPUs and any number of stops. Two lines make it
elastic: see ``joulewise.elastic`` below.

Where there are virtual GPUs (``joulewise sim``, ``JOULEWISE_VNVML``) every step also does virtual work on each GPU that
this task sees: its share of the batch, and communication that grows with the GPUs. So more GPUs are faster, and less so
each time; and clocks and power limits slow it down as they would a real job.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # sums in another order are other sums

import argparse
import hashlib
import json
import math
import secrets
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

import joulewise
from joulewise.core.errors import JoulewiseError

SHARDS, BATCH = 16, 128  # the global batch, and into how many parts it is cut
INPUTS, HIDDEN, CLASSES = 12, 24, 3
RATE, MOMENTUM = 0.05, 0.9
# Communication, of a step on one GPU: for each doubling of the GPUs, and for each further node.
PER_DOUBLING, PER_NODE = 0.01, 0.005
LONGEST_S = 60.0  # for all tasks to come together

Array = np.ndarray


class Ranks:
    """The tasks of this job: ``rank`` of ``count``. Numbers meet at rank 0, over ``links``: one to each other rank
    there, one to rank 0 elsewhere. ConnectionError when one is gone."""

    def __init__(self, rank: int, count: int, links: list[socket.socket]) -> None:
        self.rank, self.count, self._links = rank, count, links

    def summed(self, parts: list[Array]) -> Array:
        """The sum over all shards, on every rank; ``parts`` are those of shards rank, rank + count, …

        Always added in the order of the shards: the last bits of a sum depend on it.
        """
        gathered = self._gathered(np.concatenate(parts).tobytes() if parts else b"")
        if not gathered:
            return np.frombuffer(_received(self._links[0]))
        shards = np.empty((SHARDS, len(parts[0])))
        for rank, data in enumerate(gathered):
            shards[rank :: self.count] = np.frombuffer(data).reshape(-1, len(parts[0]))
        total = np.zeros(len(parts[0]))
        for shard in shards:
            total += shard
        self._spread(total.tobytes())
        return total

    def everyone(self, number: int) -> list[int]:
        """What each rank called it with."""
        gathered = self._gathered(struct.pack("<q", number))
        if gathered:
            self._spread(b"".join(gathered))
        told = b"".join(gathered) if gathered else _received(self._links[0])
        return list(struct.unpack(f"<{self.count}q", told))

    def highest(self, number: int) -> int:
        """Of what all ranks called it with."""
        return max(self.everyone(number))

    def _gathered(self, data: bytes) -> list[bytes]:
        """At rank 0 what each has sent, in order; elsewhere nothing."""
        if self.rank:
            _send(self._links[0], data)
            return []
        return [data, *map(_received, self._links)]

    def _spread(self, data: bytes) -> None:
        for link in self._links:
            _send(link, data)


@contextmanager
def meet(folder: Path) -> Iterator[Ranks]:
    """All tasks of this step, connected. They find rank 0 by a file in ``folder``, which all of them must see."""
    rank, count, name = whoami()
    links: list[socket.socket] = []
    file = folder / f".meet-{name}"
    if count > 1:
        folder.mkdir(parents=True, exist_ok=True)
        links = _welcomed(file, count) if rank == 0 else [_introduced(file, rank)]
    try:
        yield Ranks(rank, count, links)
    finally:
        for link in links:
            link.close()


def whoami() -> tuple[int, int, str]:
    """Rank, how many there are, and a name for this start. A batch script without srun is one task, whatever it has."""
    environ = os.environ
    if "SLURM_STEP_NUM_TASKS" in environ:
        start = [environ.get(f"SLURM_{each}", "0") for each in ("JOB_ID", "RESTART_COUNT", "STEP_ID")]
        return int(environ["SLURM_PROCID"]), int(environ["SLURM_STEP_NUM_TASKS"]), "-".join(start)
    return int(environ.get("RANK", "0")), int(environ.get("WORLD_SIZE", "1")), environ.get("MASTER_PORT", "0")


def _welcomed(file: Path, count: int) -> list[socket.socket]:
    """At rank 0: listen, write down where, and wait for all others; only who has read the file is let in."""
    word = secrets.token_hex(16)
    host = os.environ.get("SLURM_LAUNCH_NODE_IPADDR") or os.environ.get("MASTER_ADDR") or "127.0.0.1"
    found: dict[int, socket.socket] = {}
    with socket.create_server(("", 0)) as server:
        server.settimeout(LONGEST_S)
        new = file.with_name(file.name + ".new")
        new.touch(mode=0o600)
        new.write_text(json.dumps([host, server.getsockname()[1], word]))
        new.replace(file)
        while len(found) < count - 1:
            link, _ = server.accept()
            link.settimeout(LONGEST_S)
            said, _, rank = _received(link).decode(errors="replace").partition(" ")
            if not secrets.compare_digest(said, word):
                link.close()
                continue
            found[int(rank)] = link
    file.unlink()
    for link in found.values():
        _send(link, b"welcome")
        link.settimeout(None)
    return [found[rank] for rank in range(1, count)]


def _introduced(file: Path, rank: int) -> socket.socket:
    """Elsewhere: find rank 0. A file that an earlier start left leads nowhere, and is read again."""
    until_s = time.monotonic() + LONGEST_S
    while True:
        try:
            host, port, word = json.loads(file.read_text())
            link = socket.create_connection((host, port), timeout=LONGEST_S)
            _send(link, f"{word} {rank}".encode())
            _received(link)
            link.settimeout(None)
            return link
        except (OSError, ValueError) as error:
            if time.monotonic() > until_s:
                raise ConnectionError(f"rank {rank} did not find rank 0 within {LONGEST_S:g} s ({error})") from None
            time.sleep(0.05)


def _send(link: socket.socket, data: bytes) -> None:
    link.sendall(struct.pack("<I", len(data)) + data)


def _received(link: socket.socket) -> bytes:
    return _exactly(link, *struct.unpack("<I", _exactly(link, 4)))


def _exactly(link: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = link.recv(min(count - len(data), 1 << 20))
        if not piece:
            raise ConnectionError("another task of this job is gone")
        data += piece
    return data


class Network:
    """Two layers and their momentum, as one vector each. ``batch``: samples a step, a multiple of ``SHARDS``."""

    def __init__(self, seed: int, *, batch: int = BATCH, rate: float = RATE) -> None:
        self.batch, self.rate = batch, rate
        draw = np.random.default_rng([seed, 0])
        self.weights = 0.5 * draw.standard_normal(INPUTS * HIDDEN + HIDDEN + HIDDEN * CLASSES + CLASSES)
        self.velocity = np.zeros_like(self.weights)
        self._centres = 0.6 * np.random.default_rng([seed, 1]).standard_normal((CLASSES, INPUTS))
        self._seed = seed

    def shard(self, step: int, shard: int) -> tuple[Array, float]:
        """Gradient and loss of one shard of one step's batch; a function of these numbers and the weights alone."""
        draw = np.random.default_rng([self._seed, 2, step, shard])
        labels = draw.integers(CLASSES, size=self.batch // SHARDS)
        points = self._centres[labels] + draw.standard_normal((len(labels), INPUTS))
        first, bias, second, last = self._layers(self.weights)
        hidden = np.tanh(points @ first + bias)
        scores = hidden @ second + last
        scores -= scores.max(axis=1, keepdims=True)
        chances = np.exp(scores)
        chances /= chances.sum(axis=1, keepdims=True)
        rows = np.arange(len(labels))
        loss = -np.log(chances[rows, labels]).sum()
        chances[rows, labels] -= 1.0
        back = (chances @ second.T) * (1.0 - hidden**2)
        gradient = [points.T @ back, back.sum(axis=0), hidden.T @ chances, chances.sum(axis=0)]
        return np.concatenate([part.ravel() for part in gradient]), float(loss)

    def update(self, gradient: Array) -> None:
        self.velocity = MOMENTUM * self.velocity - self.rate / self.batch * gradient
        self.weights = self.weights + self.velocity

    def state_dict(self) -> dict[str, bytes]:
        return {"weights": self.weights.tobytes(), "velocity": self.velocity.tobytes()}

    def load_state_dict(self, state: dict[str, bytes]) -> None:
        self.weights = np.frombuffer(state["weights"]).copy()
        self.velocity = np.frombuffer(state["velocity"]).copy()

    def _layers(self, vector: Array) -> tuple[Array, Array, Array, Array]:
        sizes = np.cumsum([INPUTS * HIDDEN, HIDDEN, HIDDEN * CLASSES])
        first, bias, second, last = np.split(vector, sizes)
        return first.reshape(INPUTS, HIDDEN), bias, second.reshape(HIDDEN, CLASSES), last


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--steps", type=int, default=500)
    options.add_argument("--step-seconds", type=float, default=0.5, help="of a step on one virtual GPU, nothing set")
    options.add_argument(
        "--workload", default="transformer", help="what the virtual GPUs do; see 'joulewise sim --help'"
    )
    options.add_argument("--checkpoint", type=Path, default=Path("checkpoints"))
    options.add_argument("--every-seconds", type=float, default=600.0, help="between two checkpoints")
    options.add_argument("--pause-seconds", type=float, default=120.0, help="longest wait after SIGUSR1")
    options.add_argument("--result", type=Path, default=None, help="a line is added here when all steps are done")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--batch", type=int, default=BATCH, help=f"samples a step, a multiple of {SHARDS}")
    options.add_argument("--lr", type=float, default=RATE)
    options.add_argument("--rigid", action="store_true", help="no checkpoints: a stop loses everything")
    options.add_argument("--ignore-term", action="store_true", help="do not end on SIGTERM")
    options.add_argument("--ignore-usr1", action="store_true", help="do not save and pause on SIGUSR1")
    chosen = options.parse_args()

    ignore(chosen)
    if chosen.batch < SHARDS or chosen.batch % SHARDS:
        options.error(f"--batch {chosen.batch} is no multiple of {SHARDS}, into which it is cut")
    network = Network(chosen.seed, batch=chosen.batch, rate=chosen.lr)
    with (
        meet(chosen.checkpoint if not chosen.rigid else Path.cwd()) as peers,
        virtual_gpus(chosen, peers) as (gpus, work),
    ):
        if chosen.rigid:
            steps, starts, done_before = iter(range(chosen.steps)), 1, 0
        else:
            job = joulewise.elastic(
                chosen.checkpoint,
                network,
                every_s=chosen.every_seconds,
                pause_s=chosen.pause_seconds,
                world=gpus,
                agree=peers.highest,
            )
            steps, starts, done_before = job.steps(chosen.steps), job.starts, job.start_step
        ignore(chosen)  # elastic() has listened to them since
        loss = train(network, peers, steps, work, shown=max(1, chosen.steps // 20))
    if peers.rank == 0 and chosen.result is not None:
        tell(chosen.result, network, chosen.steps, starts, loss, did_nothing=done_before >= chosen.steps)


def ignore(chosen: argparse.Namespace) -> None:
    """Be a script that does not hear what it is told."""
    if chosen.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if chosen.ignore_usr1 or chosen.rigid:  # by default it kills
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def train(
    network: Network, peers: Ranks, steps: Iterator[int], work: Callable[[], None], *, shown: int
) -> float | None:
    """Every step that is left; the mean loss of a sample in the last one."""
    mine = range(peers.rank, SHARDS, peers.count)
    loss = None
    for step in steps:
        work()
        joulewise.step()  # for 'joulewise run --tune', which may be listening
        total = peers.summed([np.append(*network.shard(step, shard)) for shard in mine])
        network.update(total[:-1])
        loss = float(total[-1]) / network.batch
        if peers.rank == 0 and (step + 1) % shown == 0:
            print(f"step {step + 1}  loss {loss:.4f}", flush=True)
    return loss


@contextmanager
def virtual_gpus(chosen: argparse.Namespace, peers: Ranks) -> Iterator[tuple[int | None, Callable[[], None]]]:
    """All virtual GPUs of the job (None: there are none), and how to do a step's work on this task's."""
    if "JOULEWISE_VNVML" not in os.environ:
        yield None, lambda: None
        return
    from joulewise.device.work import Link
    from joulewise.model import catalog, workloads

    simulator = os.environ["JOULEWISE_VNVML"]
    mine = Link(simulator).hello["mine"]
    if not mine:
        raise SystemExit("train_elastic: there are virtual GPUs, but none for this task; see CUDA_VISIBLE_DEVICES")
    links = {gpu: Link(simulator) for gpu in mine}  # one a GPU: answers on one come in order
    gpus = sum(peers.everyone(len(mine)))
    model = catalog.load(links[mine[0]].hello["gpus"][mine[0]]["name"])
    whole = [each.load for each in workloads.get(chosen.workload, gpu=model, step_s=chosen.step_seconds).step()]
    share = [replace(each, gpu_s=each.gpu_s / gpus, host_s=each.host_s / gpus) for each in whole]
    talk_s = chosen.step_seconds * (PER_DOUBLING * math.log2(gpus) + PER_NODE * (peers.count - 1))
    talk = [(talk_s, 0.1, 60.0)] if talk_s > 0 else []

    def work() -> None:
        for gpu, link in links.items():  # two steps ahead, as launches on a real GPU run ahead of the script
            link.launch([*share, *talk], gpu, ahead=2)

    yield gpus, work
    for link in links.values():
        link.wait()


def tell(path: Path, network: Network, steps: int, starts: int, loss: float | None, *, did_nothing: bool) -> None:
    """Add a line: a second one for the same job would show that its work was done twice."""
    job = os.environ.get("SLURM_JOB_ID", "")
    before = path.read_text().splitlines() if path.exists() else []
    if did_nothing and any(json.loads(line)["job"] == job for line in before):
        return  # the start before was ended between this line and its own end
    line = {
        "job": job,
        "steps": steps,
        "starts": starts,
        "loss": loss,
        "sha256": hashlib.sha256(network.weights.tobytes()).hexdigest(),
    }
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


if __name__ == "__main__":
    try:
        main()
    except (JoulewiseError, ConnectionError) as error:
        raise SystemExit(f"train_elastic: {error}") from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
