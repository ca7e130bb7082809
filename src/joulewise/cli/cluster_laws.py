"""What the jobs of a simulated trace really do: a small set of job laws, scattered by seed.

What it is: the *truth* of ``joulewise cluster simulate``. Seconds of an iteration follow Pollux' form with a clock
term, with constants that we fitted to what ElasticFlow's authors measured on A100s (1 to 64 GPUs, 8 a node; mean error
1 to 3 %); the law of clock and power is a card of ``model/truth``, drawn by job. Two jobs of one law differ in speed,
communication, sensitivity to the clock and power. What it is not: what the scheduler believes (``cluster/belief`` fits
another form, and is only told what it would have seen), nor the truth of a bench (that is measured data).
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from joulewise.cli.cluster_gpus import Rack
from joulewise.cluster.state import Way
from joulewise.model.physics import Load
from joulewise.model.truth import RichLaw


@dataclass(frozen=True, slots=True)
class JobLaw:
    """Milliseconds of an iteration on A100s with ``batch`` samples over all GPUs: T = (T_grad^γ + T_sync^γ)^(1/γ).

    T_grad = step + sample · (samples a GPU), at full clock; T_sync = near + near_more · (GPUs − 2) in one node, with
    far across nodes, 0 on one GPU. ``sm_share`` of T_grad follows the SM clock (assumed, by kind of network).
    """

    step: float
    sample: float
    near: float
    near_more: float
    far: float
    far_more: float
    gamma: float
    sm_share: float
    most_gpus: int = 64
    """No more than were measured."""


LAWS = {
    "bert": JobLaw(48.6, 1.832, 65.2, 1.639, 72.0, 0.456, 2.61, 0.80),
    "deepspeech2": JobLaw(45.9, 8.956, 2.9, 2.788, 16.4, 0.000, 1.00, 0.50),
    "gpt2": JobLaw(23.7, 0.880, 21.5, 1.879, 31.3, 0.349, 1.71, 0.75),
    "inception3": JobLaw(21.4, 2.898, 40.4, 2.604, 58.9, 0.222, 1.76, 0.65),
    "resnet50": JobLaw(7.4, 2.133, 15.9, 2.042, 32.2, 0.155, 1.21, 0.60),
    "resnet50_cifar10": JobLaw(29.1, 0.081, 13.6, 1.110, 13.6, 1.110, 1.83, 0.55, most_gpus=8),
    "vgg16": JobLaw(0.0, 3.061, 13.0, 2.266, 26.9, 0.094, 1.00, 0.70),
}
"""Least squares on the logarithm of time, ElasticFlow's public A100 tables (pkusys/ElasticFlow, Apache-2.0)."""
BATCHES = (64, 128, 256)
"""Global batches, where a trace says none: within what was measured for all of these."""
ALIKE = {"imagenet": "resnet50", "cifar10": "resnet50_cifar10"}
"""Applications of Pollux' workloads by the network that they train."""
_MEASURED_PER_NODE = 8

# How much jobs of one law differ: standard deviations of logarithms, and of the clock's share itself. Inputs, sequence
# lengths and hosts differ between jobs of one model; cards by 8 to 18 % in power, which is in ``model/truth`` already.
_SPEED, _TALK, _SHARE, _POWER = 0.10, 0.15, 0.08, 0.08


def drawn(seed: int, name: str) -> str:
    """A law for a job of that name, all alike likely; the same for the same seed."""
    return random.Random(f"law {seed} {name}").choice(sorted(LAWS))


@dataclass
class JobTruth:
    """One job's own truth on the racks that there are. A unit of its work is an iteration."""

    law: JobLaw
    batch: int
    racks: dict[str, Rack]
    slower: float
    talk: float
    loads: dict[str, tuple[RichLaw, Load]]
    _clocks: dict[tuple[str, float], tuple[float, float, float]] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, law: JobLaw, batch: int, racks: dict[str, Rack], seed: int, name: str) -> JobTruth:
        """Of the job of that name, by seed."""
        rng = random.Random(f"truth {seed} {name}")
        slower, talk, power = (math.exp(spread * rng.gauss(0.0, 1.0)) for spread in (_SPEED, _TALK, _POWER))
        share = min(0.95, max(0.05, law.sm_share + _SHARE * rng.gauss(0.0, 1.0)))
        card = rng.randrange(2**31)
        loads = {}
        for kind, rack in racks.items():
            chip = rack.model.chip
            # What computes draws more than what streams: on an A100, of a transformer's switching power copies take
            # a third. With all of it following the clock a board is at nine tenths of its limit.
            room_w = 0.9 * (rack.model.default_limit_w - chip.static_w)
            loads[kind] = (RichLaw(chip, seed=card), Load(1.0, share, power * room_w * (0.35 + 0.65 * share)))
        return cls(law, batch, racks, slower, talk, loads)

    def unit(self, way: Way, nodes: int) -> tuple[float, float]:
        """Seconds, and joules of all its GPUs, of an iteration."""
        longer, busy_w, wait_w = self._at_clock(way)
        law, gpus = self.law, way.gpus
        batch = self.batch if way.batch is None else way.batch
        grad_s = (law.step + law.sample * batch / gpus) * 1e-3 * longer / self.racks[way.kind].speed
        sync_s = self._sync_s(gpus, nodes)
        whole_s = (grad_s**law.gamma + sync_s**law.gamma) ** (1.0 / law.gamma)
        return whole_s * self.slower, gpus * (grad_s * busy_w + (whole_s - grad_s) * wait_w) * self.slower

    def _sync_s(self, gpus: int, nodes: int) -> float:
        law = self.law
        if gpus == 1:
            return 0.0
        near, far = (first + more * (gpus - 2) for first, more in ((law.near, law.near_more), (law.far, law.far_more)))
        # Far was fitted to jobs of two nodes and more: a smaller one that is spread is no quicker than one that is not.
        spread = max(near, far) if gpus <= _MEASURED_PER_NODE else far
        return (near if nodes == 1 else spread) * 1e-3 * self.talk

    def seconds(self, kind: str, gpus: int) -> float:
        """Of an iteration at full clock on the fewest nodes."""
        return self.unit(Way(gpus, 1.0, 1.0, kind=kind), -(-gpus // self.racks[kind].kind.gpus_per_node))[0]

    def _at_clock(self, way: Way) -> tuple[float, float, float]:
        """How much longer it computes than at full clock, and a GPU's watts while it computes and while it waits."""
        card, load = self.loads[way.kind]
        top_mhz = card.nominal.sm_max_mhz
        mhz = min(way.setting.get("sm_mhz", top_mhz), top_mhz)
        known = self._clocks.get((way.kind, mhz))
        if known is None:
            there = card.operate(card.nominal, load, lock_mhz=mhz)
            known = (there.step_s, there.busy_power_w, card.idle_power_w(mhz / top_mhz))
            self._clocks[way.kind, mhz] = known
        return known
