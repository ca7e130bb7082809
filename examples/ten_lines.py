"""The ten lines of the README around a loop of virtual work: joules of every epoch, and a saving with its interval.

joulewise sim --gpu sim:h200 --speed 20 -- python examples/ten_lines.py

On a real GPU ``train`` and ``loader`` are your own, and nothing else changes.
"""

from joulewise import Monitor
from joulewise.device.work import work
from joulewise.frameworks.torch import tuning
from joulewise.model import workloads

steps = workloads.get("recommender", step_s=0.15)
loader, epochs = range(1500), 3


def train(batch: int) -> None:  # noqa: ARG001 (any will do)
    work(steps.step())


with Monitor() as monitor, tuning(max_slowdown=0.02) as job:
    for epoch in range(epochs):  # noqa: B007 (as in the README)
        with monitor.window("epoch") as window:
            for batch in loader:
                train(batch)
                job.step()
        print(window.report)
print(job.says)
