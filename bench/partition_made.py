"""Made-up partitions: tables that no search was developed on, in the shape of the spaces that Kareus searches.

Each is drawn at random: operations, collective, slots, clocks and SM counts; the simulator of ``model/partition``
says how schedules compare, and a hidden departure that no simulator of ours can represent bends it: rough by slot and
SM count, with a step somewhere (as a change of a kernel's tiling, or of the room's temperature, makes), so that the
truth is nobody's model. Repeats scatter as on the measured A100 table, with heavier tails.
"""

from __future__ import annotations

import math

import numpy as np

from bench.partition_table import Table
from joulewise.model import catalog
from joulewise.model.partition import Collective, Operation, Partition, Schedule, simulate

_NOISE = (0.0016, 0.012)  # of one repeat, time and energy: medians of the A100 table
_ROUGH = (0.006, 0.008)
_STEP = 0.02
_REPEATS = 3


def made(seed: int) -> Table:
    """A table of 300–800 schedules: clock, SMs, slot."""
    random = np.random.default_rng([seed, 41])
    partition = _partition(random)
    slots = len(partition.operations)
    clocks = np.arange(1410.0, 900.0, -30.0 * float(random.integers(1, 4)))
    counts = np.arange(3, 31, 3) if random.random() < 0.5 else np.arange(1, 21)
    rows = [(clock, float(k), float(slot)) for clock in clocks for k in counts for slot in range(slots)]
    rows = [rows[i] for i in sorted(random.permutation(len(rows))[:800])]
    told = simulate(
        partition,
        [Schedule(int(slot), slots - 1, int(k), 1024, clock) for clock, k, slot in rows],
        limit_w=400.0 if random.random() < 0.5 else None,
    )
    truth = np.column_stack([told.time_s, told.energy_j]) * np.exp(_departure(np.array(rows), random))
    scatter = np.array(_NOISE)[:, None, None] * random.standard_t(5, size=(2, len(rows), _REPEATS)) / math.sqrt(5 / 3)
    time, energy = truth.T[:, :, None] * np.exp(scatter)
    return Table(f"made-{seed}", ("sm_mhz", "sms", "slot"), tuple(rows), (2,), time, energy)


def _partition(random: np.random.Generator) -> Partition:
    operations = []
    for index in range(int(random.integers(2, 6))):
        heavy = random.random() < 0.5  # a GEMM or attention; else norm, RoPE, activation
        seconds = float(random.uniform(2e-4, 1.5e-3) if heavy else random.uniform(3e-5, 3e-4))
        memory = float(random.uniform(0.15, 0.5) if heavy else random.uniform(0.8, 1.1))
        power = float(random.uniform(200.0, 380.0) if heavy else random.uniform(80.0, 180.0))
        operations.append(
            Operation(
                f"operation {index}",
                compute_s=seconds if heavy else 0.5 * seconds,
                memory_s=memory * seconds,
                energy_j=power * seconds,
                latency=float(random.uniform(0.0, 1.5) if heavy else random.uniform(0.5, 4.0)),
                queue=float(random.uniform(0.0, 0.6)),
                tiles=int(random.integers(150, 2000)) if heavy else 0,
            )
        )
    compute = sum(operation.compute_s for operation in operations)
    alone = float(random.uniform(0.2, 0.9)) * compute  # the collective on plenty of SMs
    collective = Collective(
        sm_per_s={1024: float(random.uniform(0.06, 0.2)) / alone},
        link_per_s=1.1 / alone,
        hbm_s=float(random.uniform(0.05, 0.3)) * alone,
        energy_j=float(random.uniform(20.0, 60.0)) * alone,
        sm_w=float(random.uniform(0.5, 2.0)),
        sharpness=float(random.uniform(1.5, 4.0)),
        clock_power=float(random.uniform(0.2, 0.9)),
        launch_s=float(random.uniform(5e-6, 5e-5)),
    )
    return Partition(tuple(operations), collective, 108, catalog.load("a100-sxm").chip, float(random.uniform(60, 95)))


def _departure(rows: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Logarithms of what the simulator gets wrong, of time and of energy."""
    place = np.column_stack([rows[:, 0] / 400.0, np.log(rows[:, 1]) / 0.7])
    waves = np.zeros((len(rows), 2))
    for objective in range(2):
        for slot in np.unique(rows[:, 2]):
            mine = rows[:, 2] == slot
            bend = np.sin(place[mine] @ random.normal(size=(2, 6)) + random.uniform(0, 2 * math.pi, 6))
            waves[mine, objective] = _ROUGH[objective] * (random.normal() + bend @ random.normal(size=6) / math.sqrt(6))
    beyond = (rows[:, 2] == random.choice(rows[:, 2])) & (rows[:, 1] >= random.choice(rows[:, 1]))
    waves[beyond, 1] -= _STEP * random.random()
    return waves
