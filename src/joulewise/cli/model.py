"""``joulewise model``: fit the law of a GPU to a sweep, learn from counters, and look at the models that are known."""

from __future__ import annotations

import csv
import json
import math
import time
from collections import defaultdict
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from joulewise.cli import say
from joulewise.cli.columns import fitted
from joulewise.cli.console import Console
from joulewise.cli.help import VerbFamily
from joulewise.core import input_files
from joulewise.core.errors import BadSpec
from joulewise.core.knob import Choices
from joulewise.core.words import first_of, short
from joulewise.device.vnvml_structs import MAX_SM_CLOCKS
from joulewise.model import catalog
from joulewise.model.catalog import FitRecord, GpuModel
from joulewise.model.physics import Chip

app = VerbFamily(
    help="The laws of GPU models.\n\n"
    "  joulewise model list\n"
    "  joulewise model show h200\n"
    "  joulewise model fit sweep.csv --name mygpu -o mygpu.toml",
)

AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]

_SETTINGS = ("lock_mhz", "memory_mhz", "limit_w", "sm_mhz")
_MEASURED = ("time_s", "power_w", "energy_j")


@app.command("fit")
def fit(
    ctx: typer.Context,
    sweep: Annotated[Path, typer.Argument(metavar="SWEEP.csv", help="The measured settings.")],
    name: Annotated[str, typer.Option(metavar="NAME", help="What to call the GPU model.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the model here, not to stdout.")
    ] = None,
    like: Annotated[
        str | None, typer.Option(metavar="MODEL", help="A known model to take what a sweep cannot tell from.")
    ] = None,
    sm_max: Annotated[float | None, typer.Option("--sm-max", metavar="MHZ", help="Highest SM clock.")] = None,
    hold: Annotated[
        list[str] | None,
        typer.Option(metavar="PARAMETER", help="A law parameter to keep as in --like; repeatable."),
    ] = None,
    starts: Annotated[int, typer.Option(metavar="N", help="Starts of the search.", min=1)] = 16,
    as_json: AsJson = False,
) -> None:
    """Fit the law of a GPU to a sweep; sim:FILE.toml runs the result.

    SWEEP.csv has a header and one row a setting:

      time_s      of one unit of work (an iteration, an epoch)
      power_w     average over it, or energy_j of it
      lock_mhz    SM clock asked for; limit_w power limit; memory_mhz memory clock
      sm_mhz      SM clock observed; it stands, whatever was asked for
      series      what ran: rows of one series did the same work

    Time, power (or energy) and one of the settings are needed. An empty cell means: not set, or not known:

      series,limit_w,lock_mhz,time_s,power_w
      resnet50,700,,0.143,612.5
      resnet50,700,1200,0.198,361.2

    A good sweep has two or more kinds of work, five or more settings of each. Idle power is better measured than
    fitted: put it into a model file, and give that as --like with --hold idle_w.

      joulewise model fit sweep.csv --name mygpu -o mygpu.toml
      joulewise model fit sweep.csv --name mygpu --like a100-sxm --hold idle_w
    """
    from joulewise.model.fit import fit_chip, generic_chip

    series, ignored = read_sweep(sweep)
    if ignored:
        say(ctx, f"{sweep}: columns {first_of(ignored)} are not used")
    base = catalog.load(like or "h200")
    start = base.chip if like else generic_chip(series, sm_max_mhz=sm_max)
    if sm_max is not None:
        start = replace(start, sm_max_mhz=sm_max)
    unknown = [held for held in hold or () if held not in Chip.__slots__]
    if unknown:
        raise BadSpec(f"--hold {unknown[0]}: no such parameter; there are {', '.join(Chip.__slots__[:-1])}")
    clocks = [clock for one in series for p in one.points for clock in (p.lock_mhz, p.sm_mhz) if clock is not None]
    if clocks and max(clocks) > start.sm_max_mhz * 1.001:
        raise BadSpec(f"{sweep} has clocks up to {max(clocks):g} MHz, above {start.sm_max_mhz:g}; give --sm-max")
    if not clocks and not like and sm_max is None:
        say(ctx, "no clock is known: 1000 MHz stands for the highest; --sm-max or --like would tell")
    found = fit_chip(series, start=start, hold=hold or (), starts=starts, progress=lambda text: say(ctx, text))
    told = {*found.free, "sm_max_mhz", "heat"}
    rest = ", ".join(
        f"law.{one}" for one in Chip.__slots__ if one not in told and getattr(found.chip, one) == getattr(start, one)
    )
    model = replace(
        base,
        key=catalog.key_of(name),
        name=name,
        aliases=(),
        chip=catalog.rounded(found.chip),
        fit=FitRecord(
            f"joulewise model fit {sweep.name}",
            found.points,
            len(series),
            round(found.time_mape, 2),
            round(found.power_mape, 2),
        ),
        borrowed=(
            f"{rest}: {base.key if like else 'generic'}, the sweep does not tell",
            f"heat, sensors, switching, memory, architecture: {base.key}",
        ),
    )
    if not like:
        model = _with_knobs_of(model, clocks, [p.limit_w for one in series for p in one.points if p.limit_w])
    catalog.check(model.chip, name)
    if output is not None:
        catalog.save(model, output)
    if as_json:
        loads = {one.name: asdict(load) for one, load in zip(series, found.loads, strict=True)}
        answer = {**_as_dict(model), "loads": loads, "file": str(output) if output else None}
        typer.echo(json.dumps(answer, ensure_ascii=False, indent=2))
    elif output is None:
        typer.echo(catalog.dump(model), nl=False)
    else:
        typer.echo(
            f"{output}: time within {found.time_mape:.2f} %, power within {found.power_mape:.2f} % on average over"
            f" {found.points} points of {len(series)} series; try joulewise run --gpu sim:{output} -- COMMAND"
        )


@app.command("train")
def train(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of sweeps (.csv).")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Write the predictor here.")] = Path(
        "boosted.json"
    ),
    gpu: Annotated[str | None, typer.Option(metavar="MODEL", help="The GPU model that the sweeps ran on.")] = None,
    as_json: AsJson = False,
) -> None:
    """Learn what activity counters say of a job, from measured sweeps.

    The tuner reads counters once and begins with what similar work turned out to be. A predictor comes with
    joulewise; train your own on your GPUs, then set JOULEWISE_BOOSTED=FILE. Needs the extra 'boosted' (xgboost).

    DIR has .csv files with a header and one row a setting, as for 'joulewise model fit', and besides:

      sm occupancy tensor dram fp64 fp32 fp16    counters, 0 to 1
      benchmark    what is never both trained on and judged by; the series
      gpu          the GPU model, if the folder has several

    Counters of the highest clocks of each series are used:

      series,lock_mhz,time_s,power_w,sm,tensor,dram
      resnet50,1980,0.143,612.5,0.93,0.41,0.38
      resnet50,1500,0.158,441.0,,,

    Or DIR has the profiles of the NV-DVFS benchmarks: benchmark, kernel, argNo, core_frequency, memory_frequency, time,
    average_power, and DRAMA, FP16A, FP32A, FP64A, SMACT, SMOCC, TENSO.

      joulewise model train sweeps -o boosted.json --gpu h200
    """
    from joulewise.model import boosted

    today = time.strftime("%Y-%m-%d", time.gmtime())
    found = boosted.train(folder, gpu=gpu, date=today)
    found.save(output)
    targets = {name: {"error": one.error, "spread": one.spread} for name, one in found.targets.items()}
    if as_json:
        answer = {"file": str(output), "targets": targets, "provenance": dict(found.provenance)}
        typer.echo(json.dumps(answer, ensure_ascii=False, indent=2))
        return
    told = ", ".join(f"{name} ±{one['error']:.2g} (±{one['spread']:.2g} without)" for name, one in targets.items())
    about = found.provenance
    typer.echo(f"{output}: {about['examples']} programs of {about['benchmarks']} benchmarks; cross-validated {told}")


@app.command("list")
def list_models(as_json: AsJson = False) -> None:
    """List the GPU models that are known.

    joulewise model list --json
    """
    models = [catalog.load(key) for key in catalog.names()]
    if as_json:
        typer.echo(json.dumps({"models": [_as_dict(model) for model in models]}, ensure_ascii=False, indent=2))
        return
    rows = []
    for model in models:
        errors = [model.fit.time_mape, model.fit.power_mape]
        rows.append(
            (
                model.key,
                f"{model.sm_mhz.low:g}–{model.sm_mhz.high:g}",
                f"{model.power_limit_w.low:g}–{model.power_limit_w.high:g}",
                f"{model.chip.idle_w:g}",
                str(model.fit.points or "borrowed"),
                *("–" if error is None else f"{error:.2f} %" for error in errors),
            )
        )
    heads = ("model", "SM MHz", "limit W", "idle W", "points", "time ±", "power ±")
    console = Console()
    console.print(fitted(console, heads, rows, spare=("points", "idle W", "time ±", "power ±", "limit W")))


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(metavar="MODEL", help="Its name, or a .toml file.")], as_json: AsJson = False
) -> None:
    """Show one GPU model: parameters, their sources, and the error of the fit.

    joulewise model show h200
    joulewise model show mygpu.toml --json
    """
    model = catalog.load(name)
    if as_json:
        typer.echo(json.dumps(_as_dict(model), ensure_ascii=False, indent=2))
    else:
        typer.echo(catalog.dump(model), nl=False)


_FIT_HELP = "see 'joulewise model fit --help'"


def read_sweep(path: Path) -> tuple[list[Any], list[str]]:
    """The series of a sweep file, and the columns that are not used. Raises BadSpec with file and line."""
    from joulewise.model.fit import Point, Series

    try:
        with input_files.opened_text(path, way_out=_FIT_HELP) as file:
            reader = csv.DictReader(file)
            columns = [column.strip() for column in reader.fieldnames or ()]
            rows = [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise BadSpec(f"{path} cannot be read: it is no CSV file ({error}); {_FIT_HELP}") from error
    if "time_s" not in columns or not {"power_w", "energy_j"} & set(columns):
        raise BadSpec(f"{path} needs the columns time_s and power_w (or energy_j); it has {first_of(columns)}")
    if not set(_SETTINGS) & set(columns):
        raise BadSpec(f"{path} has none of {', '.join(_SETTINGS)}; without a setting there is nothing to fit")
    if not rows:
        raise BadSpec(f"{path} has a header but no rows; give one row a setting")
    points: dict[str, list[Any]] = defaultdict(list)
    for line, row in rows:
        cells = {(key or "").strip(): value for key, value in row.items()}
        values = {column: _cell(path, line, column, cells.get(column)) for column in (*_SETTINGS, *_MEASURED)}
        time_s, power_w, energy_j = (values.pop(column) for column in _MEASURED)
        if time_s is not None and power_w is None and energy_j is not None:
            power_w = energy_j / time_s
        if time_s is None or power_w is None:
            raise BadSpec(f"{path} line {line}: time_s and power_w (or energy_j) must be given")
        points[(cells.get("series") or "work").strip()].append(Point(time_s, power_w, **values))
    used = {"series", *_SETTINGS, *_MEASURED}
    return [Series(name, tuple(found)) for name, found in points.items()], [c for c in columns if c not in used]


def _cell(path: Path, line: int, column: str, text: str | None) -> float | None:
    """One number above 0, or None where the cell is empty."""
    if text is None or not text.strip():
        return None
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0.0 < value < float("inf"):
        raise BadSpec(f"{path} line {line}: {column}={short(text.strip())!r} is not a number above 0")
    return value


def _with_knobs_of(model: GpuModel, clocks: list[float], limits: list[float]) -> GpuModel:
    """Ranges as far as the sweep shows them."""
    high = model.chip.sm_max_mhz
    span = high - min([*clocks, model.chip.sm_floor * high])
    step = max(1, math.ceil(span / (MAX_SM_CLOCKS - 1)))  # as fine as the virtual NVML has room for
    low = high - step * math.ceil(span / step)
    model = replace(model, sm_mhz=Choices(low, high, float(step)))
    model = replace(model, memory_mhz=Choices.of([model.chip.memory_max_mhz]))
    if limits:
        model = replace(model, power_limit_w=Choices(min(limits), max(limits)), default_limit_w=max(limits))
    return model


def _as_dict(model: GpuModel) -> dict[str, Any]:
    """A model as plain data."""
    law = asdict(model.chip)
    heat = law.pop("heat")
    return {
        "model": model.key,
        "name": model.name,
        "sm_mhz": {"low": model.sm_mhz.low, "high": model.sm_mhz.high},
        "memory_mhz": list(model.memory_mhz.all()),
        "power_limit_w": {
            "low": model.power_limit_w.low,
            "default": model.default_limit_w,
            "high": model.power_limit_w.high,
        },
        "law": law,
        "heat": heat,
        "sensors": asdict(model.sensors),
        "switching": asdict(model.switching),
        "fit": asdict(model.fit),
        "borrowed": list(model.borrowed),
    }
