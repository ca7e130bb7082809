"""A training loop on a virtual GPU: real prints, virtual work. The loss is made up; the joules are the law's.

joulewise run --gpu sim:h200 --live --plot power.svg -- python examples/train_virtual.py
joulewise run --gpu sim:h200 --speed 20 --tune --live -- python examples/train_virtual.py --steps 1600

Steps are handed to the virtual GPU a few ahead, as launches on a real one are, and take what forward pass, backward
pass and optimiser take at its present clock: lock it from another shell and watch them slow down. ``joulewise.step()``
tells the tuner how far the job has got; a PyTorch script needs no such line.
"""

import argparse
import math
import random
from collections.abc import Iterator
from dataclasses import replace

import joulewise
from joulewise.core.errors import JoulewiseError
from joulewise.device.work import launch, work
from joulewise.model import workloads
from joulewise.model.workloads import Phase, Workload


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--workload", default="transformer", choices=workloads.library())
    options.add_argument("--epochs", type=int, default=3)
    options.add_argument("--steps", type=int, default=20, help="steps an epoch")
    options.add_argument("--step-seconds", type=float, default=0.25, help="one step with nothing set")
    options.add_argument("--seed", type=int, default=0)
    chosen = options.parse_args()

    job = workloads.get(chosen.workload, seed=chosen.seed, step_s=chosen.step_seconds)
    steps = training_steps(job)
    shown = max(5, chosen.steps // 8)  # lines an epoch
    losses = made_up_losses(chosen.seed)
    print(f"{chosen.workload}: {chosen.epochs} epochs of {chosen.steps} steps on a virtual GPU", flush=True)
    for epoch in range(1, chosen.epochs + 1):
        for step in range(1, chosen.steps + 1):
            launch(next(steps), ahead=4)
            joulewise.step()
            loss = next(losses)
            if step % shown == 0:
                print(f"epoch {epoch}  step {step:3d}/{chosen.steps}  loss {loss:.3f}", flush=True)
        work([job.loads[job.evaluated]] * 10)
        print(f"epoch {epoch}  evaluated  loss {next(losses) + 0.1:.3f}", flush=True)
        if job.events.checkpoint is not None:
            work(job.events.checkpoint)
            print(f"epoch {epoch}  checkpoint written", flush=True)


def training_steps(job: Workload) -> Iterator[list[Phase]]:
    """The phases of one step after another; evaluation and checkpoints are ours to place."""
    step: list[Phase] = []
    for phase in replace(job, events=workloads.Events()).phases():
        step.append(phase)
        if phase.ends_step:
            yield step
            step = []


def made_up_losses(seed: int) -> Iterator[float]:
    """A curve as one sees it: nothing is learned here."""
    luck = random.Random(seed)
    step = 0
    while True:
        step += 1
        yield 1.8 + 2.4 * math.exp(-step / 30) + luck.gauss(0, 0.03)


if __name__ == "__main__":
    try:
        main()
    except JoulewiseError as error:
        raise SystemExit(f"train_virtual: {error} (on a real GPU: examples/train_torch.py)") from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
