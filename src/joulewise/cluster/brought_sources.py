"""Where the frontiers that jobs bring come from: a tuned run, a recurring job, a plan of an iteration.

Every floor below the cluster has a frontier of its own. Here each becomes points of the one plain form (``brought``)
that a node's agent can bring about: one setting for all GPUs of the job. What a source cannot say is said at its maker.
What it is not: a measurement; nothing is run here.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from joulewise.cluster import brought
from joulewise.core import input_files
from joulewise.core.block import Block, Role, Rung
from joulewise.core.errors import BadSpec
from joulewise.core.event import Began, Event, Seen, Shifted
from joulewise.core.frontier import Point
from joulewise.core.knob import SM_MHZ, Choices, Setting, Space
from joulewise.core.objective import Edp
from joulewise.core.parsing import json_value
from joulewise.model import catalog
from joulewise.model.catalog import GpuModel
from joulewise.model.dvfs import Belief
from joulewise.plan import plan_files
from joulewise.plan.plan import Plan, play
from joulewise.store import Database, open_store, views
from joulewise.store.sql import SqliteJournal
from joulewise.tune.desk import Desk
from joulewise.tune.outlook import Outlook

MOST_POINTS = 16
"""Clocks that a belief is asked about: finer ones are no other choice."""
_UNITS = {Rung.STEPS: "step", Rung.PERIOD: "period"}
_FORMS = "'run:NAME' (see 'joulewise history'), 'recur:JOB', or a file: a plan, 'recur frontier --json', or points"


def read(source: str, *, steps: float | None = None, database: str | Path | None = None) -> dict[str, Any]:
    """What ``source`` names: ``run:NAME``, ``recur:JOB`` or ``recur:JOB@BATCH``, or a JSON file (a plan, the output of
    ``recur frontier --json``, or points in the plain form). ``steps``: of a run of a recurring job, if known.

    BadSpec, with the way out, where there is no such thing or it has no points.
    """
    kind, colon, name = source.partition(":")
    if colon and kind == "run":
        kept = Database(Path(database) if database is not None else None)
        run = views.named(kept, name)
        return of_run(event for _, event in SqliteJournal(kept, run).read())
    if colon and kind == "recur":
        job, _, batch = name.partition("@")
        if batch and not batch.isdecimal():
            raise BadSpec(f"{source}: {batch!r} is no batch size; write recur:{job}@64")
        return of_series(_series(job, database), batch=int(batch) if batch else None, steps=steps)
    return _of_file(Path(source), steps)


def of_run(events: Iterable[Event]) -> dict[str, Any]:
    """From the journal of a run of ``joulewise run --tune``: its job on as many GPUs as it had.

    The blocks that the tuner measured are told to its belief again, and that is asked about clocks from the default's
    down to two fifths of it: also about those beyond the slowdown that the run allowed, since a power cap may need
    them; their errors say how far from anything measured they are. SM clocks only. It says nothing of other numbers of
    GPUs, nor of a job that has several phases but for the one that took longest. BadSpec where nothing was measured by
    steps or periods.
    """
    events = list(events)
    began = next((event for event in events if isinstance(event, Began)), None)
    facts = began.facts if began is not None else {}
    names, uuids = list(facts.get("gpu_names", [])), list(facts.get("gpus", []))
    if began is None or not names or not uuids:
        raise BadSpec("this is no journal of 'run --tune': it does not say on which GPUs it ran")
    if len(set(names)) > 1:
        raise BadSpec(f"the run was on different GPUs ({', '.join(sorted(set(names)))}); points are of one model")
    phase, rung = _told_most(events, began.run)
    seen = [event for event in events if isinstance(event, Seen)]
    blocks = [event.block for event in seen if (event.block.phase, event.block.rung) == (phase, rung)]
    model = _model(names[0])
    space = _space(model, blocks)
    # An objective without a bound, so that slow clocks are looked at too; time and energy do not depend on it.
    belief = Belief(space, model=model, default_limit_w=None, gpus=len(uuids), seed=int(facts.get("seed", 0)))
    outlook = Outlook(belief, Edp(), seed=int(facts.get("seed", 0)))
    _tell(outlook, events, phase, rung)
    if not outlook.baseline:
        raise BadSpec(f"run {began.run} has no block with nothing set, so there is nothing to compare with; run longer")
    points = [outlook.base]
    tried = [block.setting for block in blocks if set(block.setting) == {SM_MHZ.name}]
    worth = outlook.weigh(tried) if space.knobs else None
    if worth is not None:
        by_clock = [point for point in worth.points(outlook.base) if set(point.setting) == {SM_MHZ.name}]
        points += _thinned(sorted(by_clock, key=lambda point: -point.setting[SM_MHZ.name]), keep=set(tried))
    gpu = model.key if model is not None else str(names[0])
    return brought.plain({len(uuids): points}, gpu=gpu, unit=_UNITS[rung], source=f"run {began.run}")


def of_series(said: Mapping[str, Any], *, batch: int | None = None, steps: float | None = None) -> dict[str, Any]:
    """From what ``joulewise recur frontier JOB --json`` says: whole runs by batch size and setting.

    A job that is submitted has one batch size, so points of one are taken: ``batch``, else that of the point of least
    energy × time. (Its order should say the same ``batch``.) A unit is a whole run to the target, of as many epochs as
    are expected; with ``steps``, how many such a run takes, it is a step. That epochs are expected and not known is in
    the errors. It says nothing of other numbers of GPUs than the series ran on, nor of settings that are slower and
    dearer than others but draw less, which that verb leaves out.
    """
    platform, rows = said.get("platform"), said.get("points")
    if not isinstance(platform, Mapping) or not isinstance(rows, list) or not rows:
        raise BadSpec("this is not what 'joulewise recur frontier JOB --json' says: it has no platform or no points")
    if steps is not None and not 0 < steps < math.inf:
        raise BadSpec(f"a run of {steps:g} steps is none; give how many it takes")
    try:
        costs = [(float(row["energy_j"]) * float(row["time_s"]), int(row["batch_size"])) for row in rows]
        size = batch if batch is not None else min(costs)[1]
        mine = [{key: row[key] for key in row if key != "batch_size"} for row in rows if int(row["batch_size"]) == size]
        gpus, gpu = int(platform["gpus"]), str(platform["gpu_name"])
    except (KeyError, TypeError, ValueError) as fault:
        raise BadSpec(f"a point of the series cannot be read ({type(fault).__name__}: {fault})") from None
    if not mine:
        raise BadSpec(
            f"batch size {size} has no point; there are {', '.join(map(str, sorted({each for _, each in costs})))}"
        )
    model = _model(gpu)
    gpu = model.key if model is not None else gpu
    found = brought.points({"gpu": gpu, "unit": "run", "gpus": {str(gpus): mine}})
    if steps is not None:
        found = {count: brought.scaled(points, 1.0 / steps) for count, points in found.items()}
    source = f"recur {said.get('job', '')} at batch size {size}"
    return brought.plain(found, gpu=gpu, unit="run" if steps is None else "step", source=source)


def of_plan(plan: Plan) -> dict[str, Any]:
    """From a plan of one iteration (``joulewise plan solve``): a step on as many GPUs as its pipeline has.

    A plan gives every operation a clock of its own; on a node whose clocks the scheduler holds, a job has one. So the
    points are what the plan's own measurements and schedule say of the whole pipeline at each clock that all its
    operations were measured at. What per-operation clocks would save on top is not in it, nor other numbers of GPUs: a
    pipeline's is fixed, so its order should not be elastic. BadSpec where its operations share no clock.
    """
    shared: set[Setting] | None = None
    for options in plan.options:
        here = {point.setting for point in options if set(point.setting) <= {SM_MHZ.name}}
        shared = here if shared is None else shared & here
    if not shared:
        raise BadSpec("the plan's operations were measured at no clock in common; profile all stages at the same ones")
    points = []
    for setting in shared:
        chosen = [next(point for point in options if point.setting == setting) for options in plan.options]
        points.append(Point(*play(plan.schedule, chosen, plan.costs), setting))
    said = plan.identity.gpu.says if plan.identity.gpu is not None else ""
    if not said:
        raise BadSpec("the plan does not say for which GPU it is; make it with --gpu-name")
    model = _model(said)
    gpus = plan.schedule.ranks * plan.costs.gpus_per_rank
    gpu = model.key if model is not None else said
    about = plan.identity.model.says if plan.identity.model is not None else plan.schedule.name
    return brought.plain({gpus: points}, gpu=gpu, source=f"plan of {about}")


def _of_file(path: Path, steps: float | None) -> dict[str, Any]:
    try:
        value = json_value(input_files.read_text(path, way_out=f"give {_FORMS}"))
    except ValueError as fault:
        raise BadSpec(f"{path} is not JSON ({fault}); give {_FORMS}") from None
    if not isinstance(value, dict):
        raise BadSpec(f"{path} holds no object; give {_FORMS}")
    if value.get("format") == plan_files.FORMAT:
        return of_plan(plan_files.from_json(value, str(path)))
    if "platform" in value and "points" in value:
        return of_series(value, steps=steps)
    found = brought.points(value)
    return brought.plain(found, gpu=value["gpu"], unit=value.get("unit", "step"), source=value.get("source", path.name))


def _series(job: str, database: str | Path | None) -> dict[str, Any]:
    """What ``recur frontier --json`` says, of the platform of the last trial."""
    with closing(open_store(database)) as store:
        desk = Desk.of(store, job)
        trials = desk.history() if desk.job is not None else []
        if not trials:
            raise BadSpec(f"no recurring job called {job!r} has run yet; see 'joulewise recur list'")
        platform = trials[-1].asked.platform
        rows = [
            {
                "batch_size": point.setting[0],
                "setting": dict(point.setting[1]),
                "time_s": point.time_s,
                "energy_j": point.energy_j,
                "time_error_s": point.time_error_s,
                "energy_error_j": point.energy_error_j,
            }
            for point in desk.frontier(platform)
        ]
    return {"job": job, "platform": {"gpu_name": platform.gpu_name, "gpus": platform.gpus}, "points": rows}


def _told_most(events: Sequence[Event], run: str) -> tuple[str, Rung]:
    """The phase that took longest, by the finest ruler that any block had."""
    lasted: dict[Rung, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for event in events:
        if isinstance(event, Seen):
            lasted[event.block.rung][event.block.phase] += event.block.duration_s
    for rung in _UNITS:
        if rung in lasted:
            return max(lasted[rung], key=lambda phase: lasted[rung][phase]), rung
    raise BadSpec(f"run {run} measured no steps or periods; let it run longer, or call joulewise.step() in the script")


def _tell(outlook: Outlook, events: Sequence[Event], phase: str, rung: Rung) -> None:
    """What was measured, as the tuner was told it: baselines, probes, and pairs. What was merely held has no neighbour
    to be compared with."""
    halves: dict[Role, Block] = {}
    for event in events:
        if isinstance(event, Shifted) and event.phase == phase and event.what == "large":
            outlook.renew()
            halves.clear()
        if not isinstance(event, Seen) or (event.block.phase, event.block.rung) != (phase, rung):
            continue
        if event.role is Role.BASELINE:
            outlook.add_baseline(event.block)
        elif not outlook.baseline:
            continue
        elif event.role is Role.PROBE:
            outlook.add_probe(event.block)
        elif event.role in (Role.CANDIDATE, Role.REFERENCE):
            halves[event.role] = event.block
            if len(halves) == 2:
                outlook.add_pair(halves[Role.CANDIDATE], halves[Role.REFERENCE])
                halves.clear()
        else:
            halves.clear()


def _thinned(points: Sequence[Point[Setting]], keep: set[Setting]) -> list[Point[Setting]]:
    """About ``MOST_POINTS`` of them, evenly, with those that were measured."""
    every = max(1, math.ceil(len(points) / MOST_POINTS))
    return [p for at, p in enumerate(points) if at % every == 0 or p.setting in keep or at == len(points) - 1]


def _model(name: str) -> GpuModel | None:
    try:
        return catalog.load(name)
    except BadSpec:
        return None


def _space(model: GpuModel | None, blocks: Sequence[Block]) -> Space:
    """SM clocks: the model's own, else those that were tried."""
    if model is not None:
        return Space({SM_MHZ.name: model.sm_mhz})
    tried = [block.setting[SM_MHZ.name] for block in blocks if SM_MHZ.name in block.setting]
    return Space({SM_MHZ.name: Choices.of(tried)}) if tried else Space()
