"""The names that a script imports, and what their callables take."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
from pathlib import Path

import pytest

import joulewise
import joulewise.testing
from tests.frozen.names import check

ROOT = Path(joulewise.__file__).parent
FRAMEWORKS = {
    "torch": ["tuning"],
    "huggingface": ["EnergyCallback", "StepCallback"],
    "lightning": ["EnergyCallback", "StepCallback"],
    "wandb": ["EnergyLog"],
    "tensorboard": ["EnergyLog"],
}
ASK = """
import importlib, inspect, json, sys
told = {}
for module, names in json.loads(sys.argv[1]).items():
    home = importlib.import_module(f"joulewise.frameworks.{module}")
    for name in names:
        parameters = list(inspect.signature(getattr(home, name)).parameters.values())
        told[f"{module}.{name}"] = [f"{each.kind.name.lower()} {each.name}" for each in parameters]
print(json.dumps(told))
"""


def taken(function: object) -> list[str]:
    """The parameters of a callable, as written, without types: ``gpus, /, *, interval_s=0.1``."""
    parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    return [f"{each.kind.name.lower()} {each.name}" for each in parameters if each.name != "self"]


def test_the_package_offers_what_it_offered() -> None:
    names = [name for name in joulewise.__all__ if callable(getattr(joulewise, name))]
    told = {name: taken(getattr(joulewise, name)) for name in names if not name.endswith("Error")}
    check("python", [*joulewise.__all__, *(f"{name}: {each}" for name, each_of in told.items() for each in each_of)])


def test_what_a_monitor_a_window_and_a_lease_can_do() -> None:
    from joulewise import Lease, Measurement, Monitor

    names = [
        f"{kind.__name__}.{name}"
        for kind in (Lease, Measurement, Monitor)
        for name in dir(kind)
        if not name.startswith("_")
    ]
    check("python-members", names)


def test_testing_offers_its_suites() -> None:
    check("python-testing", joulewise.testing.__all__)


@pytest.mark.exhaustive
def test_framework_callables_take_what_they_took(peers_python: Path) -> None:
    done = subprocess.run(
        [str(peers_python), "-c", ASK, json.dumps(FRAMEWORKS)],
        env={**os.environ, "PYTHONPATH": str(ROOT.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    check("python-frameworks", [*told, *(f"{name}: {each}" for name, each_of in told.items() for each in each_of)])
