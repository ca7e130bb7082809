"""What a plan saves while another pipeline holds everyone up, from measured iterations.

Every row of the file is one measured plan; the warm-up rows ran at the highest clock and are the baseline. If a
straggler needs T', the pipelines that do not straggle take the measured plan of least energy up to T'. Whoever is done
earlier waits at blocking power until T', the baseline too. Only pipelines that do not straggle are counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from bench.public_sweeps import rows_of

RATIOS = (1.0, 1.05, 1.1, 1.2, 1.5)
BLOCKING_W = {"A100": 83.64, "A40": 70.38}
"""A GPU that waits in a receive, as published with the measurements."""

PUBLISHED: dict[tuple[str, str], tuple[float, ...]] = {
    ("A100", "gpt3-xl"): (13.2, 14.7, 15.9, 15.5, 14.3),
    ("A100", "bert-huge-uncased"): (12.9, 14.9, 16.9, 16.4, 15.0),
    ("A100", "t5-3b"): (10.6, 15.3, 18.0, 17.9, 16.5),
    ("A40", "gpt3-2.7b"): (21.1, 24.5, 26.0, 25.9, 24.0),
}
"""Percent saved at each ratio by Perseus, as its authors report it (SOSP'24)."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One measured workload: seconds and joules of the baseline and of every plan."""

    gpu: str
    model: str
    gpus: int
    baseline: tuple[float, float]
    plans: tuple[tuple[float, float], ...]

    def saving(self, ratio: float) -> float:
        """Share of energy saved by T' = ratio × the baseline's time; at 1 by the fastest plan, however long it took."""
        blocked_w = self.gpus * BLOCKING_W[self.gpu]
        base_s, base_j = self.baseline
        if ratio <= 1.0:
            return 1.0 - min(self.plans)[1] / base_j
        until_s = ratio * base_s
        fit = [energy_j + blocked_w * (until_s - time_s) for time_s, energy_j in self.plans if time_s <= until_s]
        return 1.0 - min(fit) / (base_j + blocked_w * (until_s - base_s))


def read(path: Path) -> list[Workload]:
    """The workloads of a file of measured frontiers. BadSpec where it is not one."""
    baselines: dict[tuple[str, str, int], list[tuple[float, float]]] = defaultdict(list)
    plans: dict[tuple[str, str, int], list[tuple[float, float]]] = defaultdict(list)
    columns = ("system", "gpu", "model", "kind", "iter_time_s", "iter_energy_J", "mean_freq_per_rank_MHz")
    for row in rows_of(path, *columns):
        if row["system"] == "perseus":
            key = (row["gpu"], row["model"], len(row["mean_freq_per_rank_MHz"].split(";")))
            kind = baselines if row["kind"] == "warmup" else plans
            kind[key].append((float(row["iter_time_s"]), float(row["iter_energy_J"])))
    return [
        Workload(*key, (fmean(t for t, _ in rows), fmean(e for _, e in rows)), tuple(plans[key]))
        for key, rows in baselines.items()
    ]


def table(workloads: Sequence[Workload]) -> list[str]:
    """Lines: percent saved at each ratio, beside what was published."""
    lines = ["measured, % saved if T'/T is " + " ".join(f"{ratio:>14g}" for ratio in RATIOS)]
    for work in workloads:
        published = PUBLISHED.get((work.gpu, work.model), (float("nan"),) * len(RATIOS))
        cells = [
            f"{100 * work.saving(ratio):6.1f} ({said:5.1f})" for ratio, said in zip(RATIOS, published, strict=True)
        ]
        lines.append(f"{work.gpu + ' ' + work.model:29}" + " ".join(f"{cell:>14}" for cell in cells))
    return lines
