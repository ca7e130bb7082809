"""Which parameters does the shipped catalogue hold, and do the public sweeps still give them?

Fits every catalogue entry for which measurements are at hand and prints parameters and errors; ``--write`` puts
them into the files under ``src/joulewise/model/catalog_data``. Each fit starts from the entry as it stands: clocks,
heat and sensors are kept, and so is what the sweep cannot tell (`HELD`, with the reason). The H200's own points are
measured by ``bench.real_gpu`` and fitted by ``joulewise model fit``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench import public_sweeps
from joulewise.core.errors import JoulewiseError
from joulewise.model import catalog
from joulewise.model.catalog import FitRecord, GpuModel
from joulewise.model.fit import ChipFit, Series, fit_chip
from joulewise.model.physics import Chip


@dataclass(frozen=True, slots=True)
class Entry:
    """One catalogue entry and the sweep that it is fitted to."""

    key: str
    source: str
    series: Callable[[Path], list[Series]]
    hold: tuple[str, ...]


def caffe(folder: Path) -> list[Series]:
    # The VGG file holds offsets from the clocks that the card trains at by itself: memory 4500 MHz (the compute
    # state) as in the other file, and 1809 MHz, the third of that file's four core clocks 100 MHz apart.
    names = ("googlenet", "vgg")
    return [
        one
        for name in names
        for one in public_sweeps.caffe(
            folder / f"dvfs/titanX-caffe-{name}.csv", base_sm_mhz=1809.0, base_memory_mhz=4500.0
        )
    ]


def b300(folder: Path) -> list[Series]:
    names = {f"rung-cap-{watts}w" for watts in (450, 550, 700, 900, 1100)} | {"rung-prec-bf16"}
    return public_sweeps.rungs(folder / "dvfs/b300_power_rungs.csv", "B300", names)


def a40(folder: Path) -> list[Series]:
    stages = public_sweeps.stages(folder / "perseus/stage_profile/gpt3-175b+a40_bf16.csv")
    default = [Series(one.name, tuple(replace(p, limit_w=300.0) for p in one.points)) for one in stages]
    return public_sweeps.zeus(folder / "zeus/summary_power_a40.csv") + default


# Idle power with work resident is held: it was seen by itself (blocked or idle GPU), and a sweep of busy work can
# hardly tell it from static power.
HELD = ("idle_w",)
ENTRIES = (
    Entry(
        "v100",
        "Zeus power-limit series of training (NSDI'23), V100",
        lambda folder: public_sweeps.zeus(folder / "zeus/summary_power_v100.csv"),
        (*HELD, "limiter_gain"),  # 1.00 fits as well as 1.05
    ),
    Entry(
        "a40",
        "Zeus power-limit series of training (NSDI'23) and GPT-3 stages over SM clocks (Perseus, SOSP'24), A40",
        a40,
        (*HELD, "sm_floor"),
    ),
    Entry(
        "a100",
        "SM clock × power limit grid of three codes (gpu-power-frequency-benchmarks), A100 PCIe",
        lambda folder: public_sweeps.grid(folder / "dvfs/a100_clock_powerlimit_grid.csv"),
        (*HELD, "sm_floor"),
    ),
    Entry(
        "a100-sxm",
        "GPT-3 175B stages over SM clocks (Perseus, SOSP'24), A100 SXM",
        lambda folder: public_sweeps.stages(folder / "perseus/stage_profile/gpt3-175b+a100_sxm_bf16.csv"),
        (*HELD, "static_w", "overlap"),  # one kind of work, always busy: only the sum of its powers shows
    ),
    Entry(
        "rtx8000",
        "158 applications over SM clocks (NV-DVFS-Benchmark), RTX 8000",
        lambda folder: public_sweeps.sweep(sorted(folder.glob("dvfs/rtx8000-dvfs-*-profile.csv"))),
        (*HELD, "overlap"),  # kernels without a host part
    ),
    Entry(
        "titanx",
        "Caffe training over core × memory clock (dlbench_dvfs), Titan X",
        caffe,
        (*HELD, "static_w", "overlap"),  # clocks move by 20 % only
    ),
    Entry(
        "b300",
        "bf16 GEMM under five power limits (gpu-power-lab), B300",
        b300,
        (*HELD, "static_w", "overlap", "sharpness", "memory_share"),  # six points of one kind of work
    ),
)


def refit(entry: Entry, folder: Path, starts: int) -> tuple[GpuModel, ChipFit]:
    """The entry with the law fitted to its sweep."""
    model = catalog.load(entry.key)
    series = entry.series(folder)
    fit = fit_chip(series, start=model.chip, hold=entry.hold, starts=starts)
    record = FitRecord(entry.source, fit.points, len(series), round(fit.time_mape, 2), round(fit.power_mape, 2))
    return replace(model, chip=catalog.rounded(fit.chip), fit=record), fit


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; exit status 2 and one line if the data are not there."""
    parser = argparse.ArgumentParser(prog="python -m bench.fit_catalog", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("keys", nargs="*", help="entries to fit (default: all)")
    parser.add_argument("--starts", type=int, default=16, help="starts of each search (default: %(default)s)")
    parser.add_argument("--write", action="store_true", help="write the catalogue files")
    parser.add_argument("--json", action="store_true", help='end with one object {"figures": {...}}')
    options = parser.parse_args(arguments)
    figures = {}
    try:
        folder = public_sweeps.data_folder()
        for entry in ENTRIES:
            if options.keys and entry.key not in options.keys:
                continue
            model, fit = refit(entry, folder, options.starts)
            figures[f"{entry.key}_time_mape"] = round(fit.time_mape, 3)
            figures[f"{entry.key}_power_mape"] = round(fit.power_mape, 3)
            print(f"{entry.key}: {fit.points} points, time {fit.time_mape:.2f} %, power {fit.power_mape:.2f} %")
            law = {name: getattr(model.chip, name) for name in Chip.__slots__ if name != "heat"}
            print("  " + ", ".join(f"{name} {value:g}" for name, value in law.items()))
            if options.write:
                target = Path(catalog.__file__).parent / "catalog_data" / f"{entry.key}.toml"
                catalog.save(model, target)
                print(f"wrote {target}", file=sys.stderr)
    except JoulewiseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps({"figures": figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
