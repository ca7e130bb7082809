"""A pipeline of stages on virtual GPUs, for the cluster: 1F1B, a thread a stage, elastic in the sense that it can stop.

python examples/demo_cluster/train_pipe.py --steps 100 --checkpoint ckpt

Each step is one iteration: every stage does a forward and a backward of each microbatch, in the order of 1F1B, on its
own virtual GPU at its present clock, as soon as what it needs is there. When an operation was done on the virtual GPU
travels to the next stage, so that the pipeline is as fast as its GPUs and not as the threads of this machine. What a
stage takes is in ``LOADS`` and ``UNEQUAL``; ``profile_pipe.py`` measures just that, for ``joulewise plan``.
"""

import argparse
import hashlib
import json
import os
import queue
import threading
from pathlib import Path

import numpy as np

import joulewise
from joulewise.core.errors import JoulewiseError
from joulewise.device.work import ENVIRONMENT, Link

STAGES, MICROBATCHES = 8, 24
# What a microbatch is to a stage's GPU: seconds, share that follows the SM clock, watts above idle.
LOADS = {"forward": (0.030, 0.75, 270.0), "backward": (0.060, 0.65, 250.0)}
UNEQUAL = (1.0, 0.85, 0.85, 0.95, 0.95, 0.85, 0.85, 1.1)  # stages of real models are not equally long either
SIZE = 16  # of the state that is trained, so that there is something to save

Load = tuple[float, float, float]


def load_of(stage: int, kind: str) -> Load:
    """What one operation of a stage takes."""
    gpu_s, share, watts = LOADS[kind]
    return gpu_s * UNEQUAL[stage], share, watts


def order_of(stage: int) -> list[tuple[str, int]]:
    """1F1B: as many forwards as fill the pipeline behind this stage, then one backward a forward."""
    ahead = min(MICROBATCHES, STAGES - stage)
    done = [("forward", number) for number in range(ahead)]
    for number in range(MICROBATCHES):
        done.append(("backward", number))
        if ahead + number < MICROBATCHES:
            done.append(("forward", ahead + number))
    return done


class Stage(threading.Thread):
    """One stage: its GPU, and the ends of the queues that lead to and from its neighbours."""

    def __init__(self, number: int, simulator: str, gpu: int, ends: dict[str, "queue.Queue[float]"]) -> None:
        super().__init__(name=f"stage {number}", daemon=True)
        self.number, self.gpu, self.ends = number, gpu, ends
        self.go: queue.Queue[float | None] = queue.Queue()
        self.done: queue.Queue[float | BaseException] = queue.Queue()
        self._link = Link(simulator)
        self._free_s = 0.0

    def run(self) -> None:
        """Iterations, until told that there are no more."""
        try:
            while (begin_s := self.go.get()) is not None:
                self._free_s = max(self._free_s, begin_s)
                for kind, _ in order_of(self.number):
                    self._do(kind)
                self.done.put(self._free_s)
        except (JoulewiseError, OSError) as error:
            self.done.put(error)

    def _do(self, kind: str) -> None:
        after_s = self.ends[f"{kind} in"].get() if f"{kind} in" in self.ends else 0.0
        request = {"op": "work", "gpu": self.gpu, "loads": [list(load_of(self.number, kind))]}
        if since_s := max(self._free_s, after_s):
            request["since_s"] = since_s
        self._free_s = self._link.finish(self._link.send(request)).finished_s
        if f"{kind} out" in self.ends:
            self.ends[f"{kind} out"].put(self._free_s)


def pipeline(simulator: str) -> list[Stage]:
    """All stages, started, each with a GPU of its own."""
    gpus = Link(simulator).hello["mine"]
    if len(gpus) != STAGES:
        raise SystemExit(f"train_pipe: {STAGES} stages need as many GPUs; this job sees {len(gpus)}")
    forward: list[queue.Queue[float]] = [queue.Queue() for _ in range(STAGES - 1)]
    backward: list[queue.Queue[float]] = [queue.Queue() for _ in range(STAGES - 1)]
    stages = []
    for number, gpu in enumerate(gpus):
        ends = {}
        if number > 0:
            ends |= {"forward in": forward[number - 1], "backward out": backward[number - 1]}
        if number < STAGES - 1:
            ends |= {"forward out": forward[number], "backward in": backward[number]}
        stages.append(Stage(number, simulator, gpu, ends))
        stages[-1].start()
    return stages


def iterate(stages: list[Stage], begin_s: float) -> float:
    """One iteration; when its last operation was done. All stages begin together, as the optimiser makes them."""
    for stage in stages:
        stage.go.put(begin_s)
    ends_s = []
    for stage in stages:
        done = stage.done.get()
        if isinstance(done, BaseException):
            raise done
        ends_s.append(done)
    return max(ends_s)


class State:
    """What is trained: a vector that walks to a made-up goal, the same however often it is stopped."""

    def __init__(self, seed: int) -> None:
        self._goal = np.random.default_rng(seed).standard_normal(SIZE)
        self.weights = np.zeros(SIZE)

    def update(self) -> float:
        """One step; the distance that is left."""
        self.weights = self.weights + 0.01 * (self._goal - self.weights)
        return float(np.linalg.norm(self._goal - self.weights))

    def state_dict(self) -> dict[str, bytes]:
        """For the checkpoint."""
        return {"weights": self.weights.tobytes()}

    def load_state_dict(self, state: dict[str, bytes]) -> None:
        """From the checkpoint."""
        self.weights = np.frombuffer(state["weights"]).copy()


def main() -> None:
    """Train until all steps are done."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--steps", type=int, default=100)
    options.add_argument("--checkpoint", type=Path, default=Path("checkpoints"))
    options.add_argument("--result", type=Path, default=None, help="a line is added here when all steps are done")
    chosen = options.parse_args()
    simulator = os.environ.get(ENVIRONMENT)
    if simulator is None:
        raise SystemExit("train_pipe: there are no virtual GPUs here; start it under 'joulewise sim'")

    stages, state, at_s, left = pipeline(simulator), State(0), 0.0, 0.0
    job = joulewise.elastic(chosen.checkpoint, state, world=STAGES)
    for step in job.steps(chosen.steps):
        # Where it was paused or has just begun, now is later than the end of the step before.
        at_s = iterate(stages, at_s)
        left = state.update()
        if (step + 1) % 20 == 0:
            print(f"step {step + 1}  left {left:.4f}", flush=True)
    for stage in stages:
        stage.go.put(None)
    if chosen.result is not None:
        done = {"job": os.environ.get("SLURM_JOB_ID", ""), "steps": chosen.steps, "starts": job.starts, "loss": left}
        done["sha256"] = hashlib.sha256(state.weights.tobytes()).hexdigest()
        with chosen.result.open("a") as file:
            file.write(json.dumps(done) + "\n")


if __name__ == "__main__":
    try:
        main()
    except JoulewiseError as error:
        raise SystemExit(f"train_pipe: {error}") from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
