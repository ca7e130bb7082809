"""Energy in Weights & Biases, next to the loss.

    from joulewise.frameworks.wandb import EnergyLog

    with wandb.init(project="mine") as run, EnergyLog(run) as energy:
        for batch in loader:
            loss = train(batch)
            energy.step()
            run.log({"loss": loss})

Curves are those of ``energy_log``; the run's summary gets the total. A point goes into the step that the script logs
next, so that no step of its own is made. Importing this module loads nothing; without a ``run`` the present one of
``wandb`` is used, and where there is none nothing is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from joulewise.frameworks import energy_log

if TYPE_CHECKING:
    from joulewise.device.gpu import Gpu


class EnergyLog(energy_log.EnergyLog):
    """An ``EnergyLog`` that writes to ``run``, or to the present run of ``wandb``."""

    def __init__(
        self, run: Any = None, *, gpu: str | None = None, every_s: float = 10.0, gpus: Sequence[Gpu] | None = None
    ) -> None:
        super().__init__(self._to_run, gpu=gpu, every_s=every_s, gpus=gpus)
        self._run = run

    def _to_run(self, values: Mapping[str, float], _: int | None) -> None:
        run = self._run if self._run is not None else _present()
        if run is None:  # another rank than the one that logs
            return
        if self.report is None:
            # With the script's next point, whatever number that has: W&B drops what is for a step that is over.
            run.log(dict(values), commit=False)
            return
        run.log(dict(values))
        run.summary.update({"energy/total_j": values["energy/total_j"]})


def _present() -> Any:
    import wandb

    return wandb.run
