"""Kareus' ablation in the simulator: what clocks alone, schedules alone and both together save on one iteration.

Assumptions, all of them: the attention partition is the one fitted to the A100 table; the MLP's has the same operations
with twice the compute (the ratio of FLOPs of a Llama 3.2 3B layer at 4096 tokens) and the same all-reduce; backward is
twice forward's compute; splitting a microbatch loses nothing; sums of partitions are exact (nobody measured their
additivity here); two stages of 15 and 13 layers, 8 microbatches, 1F1B; 18 clocks of 900–1410 MHz; 400 W limit; waiting
costs 85 W; plain overlap launches at the first operation with 20 SMs. The clock dependence is that of a GPT-3 stage.
Published beside it: Qwen3 1.7B (not this model) at 8 microbatches of 8 × 4096 tokens on 16 A100s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from bench.partition_sim import A100_LIMIT_W, fitted, measured
from bench.partition_table import KAREUS_BLOCKING_W, Table
from joulewise.core.frontier import Point
from joulewise.model.partition import SEQUENTIAL, Partition, Schedule, simulate
from joulewise.model.partition_fit import Clocked
from joulewise.plan.compose import PLAIN_SUM, Microbatch, Part, compose
from joulewise.plan.flow import IterationFrontier, solve
from joulewise.plan.schedules_named import named

CLOCKS = tuple(float(clock) for clock in range(1410, 899, -30))
LAYERS, NANOBATCHES, MICROBATCHES = (15, 13), 2, 8
MLP_COMPUTE, BACKWARD_COMPUTE = 2.0, 2.0
SLOTS, COUNTS = (0, 2, 3, 5, 6), tuple(range(3, 31, 3))
PLAIN = Schedule(0, 6, 20, 1024)
BLOCK = 1024
PUBLISHED = {"no_clock_scaling": 12.9, "no_kernel_scheduling": 10.8}


def figures(table: Table, clocks: Sequence[Clocked], out: Callable[[str], None]) -> dict[str, float]:
    """Per cent more energy without each part, at equal time and at each variant's own fastest; gains over M+P."""
    attention = fitted(measured(table), clocks)
    every = [Schedule(slot, 6, count, BLOCK) for slot in SLOTS for count in COUNTS]
    variants = {
        "kareus": _iteration(attention, every, CLOCKS),
        "no_clock_scaling": _iteration(attention, every, CLOCKS[:1]),
        "no_kernel_scheduling": _iteration(attention, [PLAIN], CLOCKS),
        "neither": _iteration(attention, [PLAIN], CLOCKS[:1]),
        "perseus": _iteration(attention, [], CLOCKS),
    }
    whole = variants["kareus"]
    common = max(frontier.t_min_s for name, frontier in variants.items() if name != "perseus")
    found: dict[str, float] = {}
    for name, frontier in variants.items():
        fastest = frontier.t_min_s
        out(f"{name}: fastest {fastest:.3f} s, {frontier.total_j(fastest):.0f} J; least {_least(frontier):.0f} J")
        if name not in ("kareus", "perseus"):
            found[f"ablation_{name}_pct"] = 100.0 * (_by(frontier, common) / _by(whole, common) - 1.0)
            own = frontier.total_j(fastest) / whole.total_j(whole.t_min_s)
            found[f"ablation_{name}_own_fastest_pct"] = 100.0 * (own - 1.0)
            published = f", published +{PUBLISHED[name]} %" if name in PUBLISHED else ""
            out(f"  energy +{found[f'ablation_{name}_pct']:.1f} % at {common:.3f} s{published}")
    perseus = variants["perseus"]
    budget = perseus.total_j(perseus.t_min_s)
    found["iso_time_energy_saved_pct"] = 100.0 * (1.0 - _by(whole, perseus.t_min_s) / budget)
    found["iso_energy_time_saved_pct"] = 100.0 * (1.0 - whole.within_energy(budget).time_s / perseus.t_min_s)
    out(
        f"against Perseus: {found['iso_time_energy_saved_pct']:.1f} % energy at its fastest time, "
        f"{found['iso_energy_time_saved_pct']:.1f} % time at that energy"
    )
    return found


def _by(frontier: IterationFrontier[Microbatch], deadline_s: float) -> float:
    """Least energy of an iteration that may take until the deadline."""
    return frontier.total_j(min(max(deadline_s, frontier.t_min_s), frontier.t_star_s))


def _least(frontier: IterationFrontier[Microbatch]) -> float:
    return frontier.total_j(frontier.t_star_s)


def _iteration(
    attention: Partition, schedules: Sequence[Schedule], clocks: Sequence[float]
) -> IterationFrontier[Microbatch]:
    """The frontier of the whole iteration; no schedules: the undivided microbatch, as in Perseus."""
    kinds = {}
    for kind, factor in (("forward", 1.0), ("backward", BACKWARD_COMPUTE)):
        partitions = {"attention": _scaled(attention, factor), "mlp": _scaled(attention, factor * MLP_COMPUTE)}
        for stage, layers in enumerate(LAYERS):
            times = layers * NANOBATCHES
            alone = Schedule(SEQUENTIAL, SEQUENTIAL, PLAIN.sms, BLOCK)
            parts = [Part(name, times, _options(one, schedules, clocks)) for name, one in partitions.items()]
            undivided = {
                clock: [_total([_options(one, [alone], [clock])[clock][0] for one in partitions.values()], times)]
                for clock in clocks
            }
            kinds[stage, kind] = compose(
                parts if schedules else (), additivity=PLAIN_SUM, blocking_w=KAREUS_BLOCKING_W, sequential=undivided
            )
    dag = named("1f1b", stages=len(LAYERS), microbatches=MICROBATCHES).dag
    options = [kinds[operation.stage, operation.kind] for operation in dag.operations]
    edges = [(edge.before, edge.after, edge.lag_s) for edge in dag.edges]
    return solve(options, edges, blocking_w=KAREUS_BLOCKING_W, lanes=len(LAYERS))


def _scaled(partition: Partition, factor: float) -> Partition:
    """The same partition with ``factor`` times the compute."""
    return replace(
        partition,
        operations=tuple(
            replace(
                one,
                compute_s=one.compute_s * factor,
                memory_s=one.memory_s * factor,
                energy_j=one.energy_j * factor,
            )
            for one in partition.operations
        ),
    )


def _options(
    partition: Partition, schedules: Sequence[Schedule], clocks: Sequence[float]
) -> dict[float, list[Point[str]]]:
    found = {}
    for clock in clocks:
        told = simulate(partition, [replace(one, sm_mhz=clock) for one in schedules], limit_w=A100_LIMIT_W)
        found[clock] = [
            Point(float(time), float(energy), f"{one.start}–{one.end} {one.sms} SMs")
            for one, time, energy in zip(schedules, told.time_s, told.energy_j, strict=True)
        ]
    return found


def _total(points: Sequence[Point[str]], times: int) -> Point[str]:
    return Point(
        times * sum(point.time_s for point in points), times * sum(point.energy_j for point in points), "sequential"
    )
