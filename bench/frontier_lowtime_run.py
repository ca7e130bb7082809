"""Runs lowtime on one problem; a program of its own, for a Python that has lowtime and need not have joulewise.

Reads one JSON object from standard input and writes one to standard output (``bench.frontier_lowtime`` is the caller).
An operation's cost is its energy less blocking power × quantised time, fitted by an exponential. As published,
lowtime's Pareto filter sees whole energy, before that is taken off; ``filter_effective`` lets it see the cost instead,
which keeps slower options. CPU seconds are of the solver alone, without the fits.
"""

from __future__ import annotations

import importlib
import json
import resource
import sys
import time
from typing import Any


def main() -> None:
    """One problem in, its frontier out."""
    asked = json.load(sys.stdin)
    operation = importlib.import_module("lowtime.operation")
    graph = importlib.import_module("networkx").DiGraph()
    specs = [_spec(operation, curve, asked) for curve in asked["curves"]]
    operations = [operation.Operation(spec=specs[index]) for index in asked["curve_of"]]
    for at, each in enumerate(operations):
        graph.add_node(at + 2, op=each)
    graph.add_edges_from((before + 2, after + 2) for before, after in asked["edges"])
    graph_utils = importlib.import_module("lowtime.graph_utils")
    graph_utils.add_source_node(graph, 0)
    graph_utils.add_sink_node(graph, 1)
    graph.graph.update(source_node=0, sink_node=1)
    print(json.dumps(_run(graph, operations, asked)))


def _spec(operation: Any, curve: list[list[float]], asked: dict[str, Any]) -> Any:
    """lowtime's options and cost model of one operation; the setting is the option's place in our list."""
    unit_s = asked["unit_s"]
    given = [operation.ExecutionOption(time_s, unit_s, energy_j, at) for at, (time_s, energy_j) in enumerate(curve)]
    options = None if asked["filter_effective"] else operation.CandidateExecutionOptions(given)
    for option in options.options if options else given:
        option.cost -= asked["blocking_w"] * option.quant_time * unit_s
    options = options or operation.CandidateExecutionOptions(given)
    model = importlib.import_module("lowtime.cost_model").ExponentialModel(options)
    return operation.OperationSpec(options, model)


def _run(graph: Any, operations: list[Any], asked: dict[str, Any]) -> dict[str, Any]:
    solver = importlib.import_module("lowtime.solver").PhillipsDessouky(graph)
    points: list[tuple[float, float]] = []
    plans: list[list[int]] = []
    begun_s = time.process_time()
    finished = True
    for result in solver.run():
        points.append((result.real_time, result.cost))
        plans.append([int(each.assigned_knob) for each in operations])
        if time.process_time() - begun_s > asked["limit_s"]:
            finished = False
            break
    cpu_s = time.process_time() - begun_s
    return {
        "cpu_s": cpu_s,
        "finished": finished,
        "points": points,
        "plans": plans,
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


if __name__ == "__main__":
    main()
