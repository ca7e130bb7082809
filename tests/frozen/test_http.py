"""The HTTP surface: every route with its parameters and the fields of its bodies, and every metric with its labels."""

from __future__ import annotations

import json
import os
import re
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server's packages are not installed (pip install 'joulewise[server]')")

from prometheus_client.parser import text_string_to_metric_families

from tests import preloaded
from tests.frozen.names import check

ROOT = Path(__file__).parents[2]


@contextmanager
def listening(*words: str, home: Path) -> Iterator[str]:
    """The address at which ``joulewise WORDS`` listens, while it does."""
    environ = {**os.environ, "JOULEWISE_HOME": str(home), "OPENBLAS_NUM_THREADS": "1"}
    with preloaded.Command(*words, "--port", "0", env=environ, stderr=subprocess.PIPE) as server:
        assert server.stderr is not None
        said = ""
        while (found := re.search(r"http://[\d.]+:\d+", said)) is None:
            line = server.stderr.readline()
            assert line, said
            said += line
        yield found[0]
        server.terminate()
        server.stderr.read()


def got(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


@pytest.fixture(scope="module")
def serve(written: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    plans = tmp_path_factory.mktemp("plans")
    (plans / "four-stages.json").write_bytes((written / "plan-1.json").read_bytes())
    words = ("--database", str(written / "store.db"), "--plans", str(plans), "--gpu", "sim:h200*2")
    with listening("serve", *words, "--trust-local-users", home=tmp_path_factory.mktemp("home")) as url:
        yield url


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("home")
    where = ("--database", str(home / "cluster.db"), "--socket", str(home / "cluster.sock"))
    with listening("cluster", "up", "--engine", "sim", "--gpu", "sim:a100-sxm*16", *where, home=home) as url:
        yield url


def routes(document: Mapping[str, Any]) -> Iterator[str]:
    """What an OpenAPI document promises, apart from its prose and from what the shapes in it are called."""
    shapes = document["components"]["schemas"]
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            where = f"{method.upper()} {path}"
            yield where
            for each in route.get("parameters", ()):
                yield f"{where} {each['in']} {each['name']}{' required' * each['required']}"
            for kind, body in route.get("requestBody", {}).get("content", {}).items():
                yield from (f"{where} takes {kind} {field}" for field in fields(body["schema"], shapes))
            for code, answer in route["responses"].items():
                yield f"{where} answers {code}"
                for body in answer.get("content", {}).values():
                    yield from (f"{where} {code} {field}" for field in fields(body.get("schema", {}), shapes))


def fields(
    schema: Mapping[str, Any], shapes: Mapping[str, Any], at: str = "", inside: tuple[str, ...] = ()
) -> set[str]:
    """Every field that a body of this schema may have, as a path."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return set() if name in inside else fields(shapes[name], shapes, at, (*inside, name))
    found = set()
    for part in (*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())):
        found |= fields(part, shapes, at, inside)
    if isinstance(items := schema.get("items"), dict):
        found |= fields(items, shapes, f"{at}[]", inside)
    if isinstance(more := schema.get("additionalProperties"), dict):
        found |= fields(more, shapes, f"{at}.*".lstrip("."), inside)
    for name, part in schema.get("properties", {}).items():
        path = f"{at}.{name}".lstrip(".")
        found |= {path + " required" * (name in schema.get("required", ()))} | fields(part, shapes, path, inside)
    return found


def metrics(text: str) -> Iterator[str]:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield f"{family.type} {sample.name} {' '.join(sorted(sample.labels))}".rstrip()


@pytest.mark.parametrize("server", ["serve", "cluster"])
def test_routes_parameters_and_fields_are_these(server: str, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue(server)
    check(f"http-{server}", routes(json.loads(got(f"{url}/openapi.json"))))


def test_metrics_of_a_server_are_these(serve: str) -> None:
    check("metrics-serve", metrics(got(f"{serve}/metrics")))


def test_metrics_that_dashboards_were_told_of_are_these() -> None:
    """Those of leases, writes and clusters, too, which not every server has."""
    told = (ROOT / "docs" / "metrics.md").read_text("utf-8")
    check("metrics", re.findall(r"joulewise_[a-z_]*[a-z]", told))
