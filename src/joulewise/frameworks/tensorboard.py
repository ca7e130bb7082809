"""Energy in TensorBoard, next to the loss.

    from torch.utils.tensorboard import SummaryWriter
    from joulewise.frameworks.tensorboard import EnergyLog

    with SummaryWriter() as writer, EnergyLog(writer) as energy:
        for step, batch in enumerate(loader):
            writer.add_scalar("loss", train(batch), step)
            energy.step(step)

Curves are those of ``energy_log``. Any writer with ``add_scalar(tag, value, step)`` will do: PyTorch's, tensorboardX's.
Importing this module loads nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from joulewise.frameworks import energy_log

if TYPE_CHECKING:
    from joulewise.device.gpu import Gpu


class Writer(Protocol):
    """What is needed of a ``SummaryWriter``."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> Any:
        """Put one value on the curve ``tag``."""
        ...


class EnergyLog(energy_log.EnergyLog):
    """An ``EnergyLog`` that writes to ``writer``. Steps that the script does not number are counted from 1."""

    def __init__(
        self, writer: Writer, *, gpu: str | None = None, every_s: float = 10.0, gpus: Sequence[Gpu] | None = None
    ) -> None:
        super().__init__(self._to_writer, gpu=gpu, every_s=every_s, gpus=gpus)
        self._writer = writer
        self._last: int | None = None

    def step(self, step: int | None = None) -> None:
        """As ``energy_log.EnergyLog.step``."""
        self._last = step if step is not None else (self._last or 0) + 1
        super().step(self._last)

    def _to_writer(self, values: Mapping[str, float], step: int | None) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, self._last if step is None else step)
