"""The keys of every ``--json``, verb by verb: what scripts pick out with jq."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from joulewise.device.node import spawn
from joulewise.model import catalog
from joulewise.model.physics import Load, operate
from tests import preloaded
from tests.cli.clusters import written as trace_written
from tests.frozen.conftest import KILLED, PLAIN, TUNED
from tests.frozen.names import check, keys
from tests.plan.traced_job import Truth, fsdp

GPU = "GPU-0d0fa1f3-5c3a-4d0e-9f55-0c3f52a0b1c2"
TRAIN = (sys.executable, str(Path(__file__).parents[2] / "examples" / "train_virtual.py"))
SCHEDULE = ("--schedule", "1f1b", "--stages", "4", "--microbatches", "8", "--blocking-w", "110", "--points", "9")
SCHEDULES = """part,slot,sms,sm_mhz,time_s,energy_j
attention,sequential,20,1410,0.00320,0.95
attention,rope,9,1410,0.00267,0.93
attention,attn,9,1100,0.0031,0.80
mlp,sequential,16,1410,0.0040,1.00
mlp,norm,16,1410,0.0042,1.20
"""

STORED: dict[str, tuple[str, ...]] = {
    "history": ("history",),
    "history-of-a-tuned-run": ("history", TUNED),
    "history-of-a-plain-run": ("history", PLAIN),
    "history-of-a-killed-run": ("history", KILLED),
    "history-learnt": ("history", "--learnt"),
    "report-of-a-tuned-run": ("report", TUNED),
    "report-of-a-plain-run": ("report", PLAIN),
    "report-compare": ("report", "--compare", PLAIN, TUNED),
    "verify": ("verify", TUNED),
    "recur-status": ("recur", "status", "nightly"),
    "recur-history": ("recur", "history", "nightly"),
    "recur-frontier": ("recur", "frontier", "nightly"),
    "recur-list": ("recur", "list"),
}
"""Verbs that tell of what the store holds."""

LONG = ("--epochs", "1", "--steps", "400", "--step-seconds", "0.15")
RECURRING = ("--job", "nightly", "--batch-sizes", "32..64", "--default", "32", "--target", "loss<=100")
RECURRING += ("--max-epochs", "2", "--metric-pattern", r"epoch (?P<epoch>\d+)  evaluated  loss (?P<loss>[0-9.]+)", "--")
WHERE = ("tune.", "trials[].tune.")
SETTINGS = tuple(f"{at}{part}" for at in WHERE for part in ("changes[].setting", "advice.setting", "held"))
"""What was set: whichever knobs."""
NOT_IN_ALL = tuple(
    f"{at}{part}." for at in WHERE for part in ("claim", "advice", "changes[]", "held", "untuned", "worth")
)
"""What is told of tuning once there is something to tell."""
VARIED: dict[str, tuple[str, ...]] = {
    "cluster-status": ("jobs[].place",),
    "plan-partitions": ("partitions",),
    "cluster-simulate": ("gpus",),
}
"""Where names are those of things told of, and look like keys."""

Said = Callable[..., str]


def one(text: str) -> Any:
    """The one object that was written."""
    return json.loads(text)


@pytest.mark.parametrize("what", STORED)
def test_what_is_told_of_the_store_has_these_keys(what: str, said: Said, written: Path) -> None:
    answer = one(said(*STORED[what], "--database", written / "store.db", "--json"))
    check(f"json-{what}", keys(answer, VARIED.get(what, ())))


def test_plans_have_these_keys(said: Said, written: Path, tmp_path: Path) -> None:
    schedules = tmp_path / "schedules.csv"
    schedules.write_text(SCHEDULES)
    plan = written / "plan-1.json"
    asked: dict[str, tuple[object, ...]] = {
        "plan-solve": ("plan", "solve", written / "profile.csv", *SCHEDULE),
        "plan-show": ("plan", "show", plan),
        "plan-query": ("plan", "query", plan, "--deadline", "9.5s"),
        "plan-check": ("plan", "check", plan, "--gpu-name", "NVIDIA A100-SXM4-80GB"),
        "plan-partitions": ("plan", "partitions", schedules),
    }
    for what, words in asked.items():
        check(f"json-{what}", keys(one(said(*words, "--json")), VARIED.get(what, ())))


def test_an_x_ray_has_these_keys(said: Said, tmp_path: Path) -> None:
    h200 = catalog.load("h200")
    trace = tmp_path / "rank0.json"
    trace.write_text(json.dumps(Truth(fsdp(1, h200, layers=3), h200, seed=0).kineto(rank=0, seed=0)))
    check("json-plan-xray", keys(one(said("plan", "xray", trace, "--seed", 3, "--json"))))


def test_models_have_these_keys(said: Said, tmp_path: Path) -> None:
    chip = catalog.load("a40").chip
    rows = ["series,lock_mhz,limit_w,time_s,power_w"]
    for lock_mhz in range(600, 1750, 150):
        seen = operate(chip, Load(0.2, 0.9, 280.0, 0.03), lock_mhz=lock_mhz, limit_w=300.0)
        rows.append(f"net,{lock_mhz},300,{seen.step_s:.6f},{seen.average_power_w:.3f}")
    sweep = tmp_path / "sweep.csv"
    sweep.write_text("\n".join(rows) + "\n")
    check("json-model-list", keys(one(said("model", "list", "--json"))))
    check("json-model-show", keys(one(said("model", "show", "h200", "--json"))))
    fitted = said("model", "fit", sweep, "--name", "Mine", "-o", tmp_path / "mine.toml", "--starts", 2, "--json")
    check("json-model-fit", keys(one(fitted)))


def test_simulated_clusters_have_these_keys(said: Said, tmp_path: Path) -> None:
    trace = trace_written(tmp_path / "trace.csv", 6)
    scene = ("--gpu", "sim:a100-sxm*16", "--energy-budget", "90kWh/day", "--power-cap", "8kW")
    policies = ("--policy", "priced", "--policy", "fifo")
    decisions = tmp_path / "rounds.jsonl"
    answer = one(said("cluster", "simulate", trace, *scene, *policies, "--decisions", decisions, "--json"))
    check("json-cluster-simulate", keys(answer, VARIED["cluster-simulate"]))
    first = json.loads(decisions.read_text().splitlines()[0])
    check("json-cluster-simulate-decisions", keys(first))
    explained = said("cluster", "explain", "job-0", "--at", "10m", "--decisions", decisions, "--json")
    check("json-cluster-explain", keys(one(explained)))


def test_a_look_at_gpus_has_these_keys(said: Said) -> None:
    check("json-top", keys(one(said("top", "--once", "--json", "--gpu", "sim:h200,a100"))))


def test_the_settings_of_this_machine_have_these_keys(said: Said) -> None:
    check("json-config", keys(one(said("config", "--json"))))


@pytest.mark.usefixtures("may_set")
def test_what_an_admin_asks_has_these_keys(said: Said, written: Path, tmp_path: Path) -> None:
    folders = ("--state", written / "settings", "--socket", tmp_path / "none")
    check("json-leases", keys(one(said("leases", *folders, "--json"))))
    check("json-stand-list", keys(one(said("stand", "--list", *folders, "--json"))))
    grants = ("--grants", written / "grants", "--json")
    check("json-grant-list", keys(one(said("grant", "list", *grants)), ("grants[].knobs",)))
    added = ("--uid", 1000, "--gpu", GPU, "--for", "2h", "--job", "7")
    check("json-grant-add", keys(one(said("grant", "add", *added, *grants)), ("knobs",)))
    check("json-grant-remove", keys(one(said("grant", "remove", "--job", "7", *grants))))


MEASURED = ("--gpu", "sim:h200", "--speed", "20", "--json", "-")
"""Of a run on a virtual GPU, its result on the last line of stdout."""


@pytest.mark.parametrize("what", ["run", "run-set", "run-dry-run", "run-tune", "recur-run"])
def test_what_became_of_a_command_has_these_keys(what: str, virtual_nvml: None, tmp_path: Path) -> None:
    verbs: dict[str, tuple[str, ...]] = {
        "run": ("run", *MEASURED, "--", *TRAIN, "--epochs", "1", "--steps", "10"),
        "run-set": ("run", *MEASURED, "--set", "sm_mhz=1200", "--", *TRAIN, "--epochs", "1", "--steps", "10"),
        "run-dry-run": ("run", *MEASURED, "--tune", "--dry-run", "--", *TRAIN, *LONG),
        "run-tune": ("run", *MEASURED, "--tune", "--", *TRAIN, *LONG),
        "recur-run": ("recur", "run", *MEASURED, *RECURRING, *TRAIN, "--epochs", "2", "--steps", "{batch_size}"),
    }
    environ = {**os.environ, "JOULEWISE_HOME": str(tmp_path)}
    done = preloaded.run(*verbs[what], env=environ, cwd=tmp_path)
    assert done.stdout, done.stderr
    check(f"json-{what}", keys(json.loads(done.stdout.splitlines()[-1]), SETTINGS), NOT_IN_ALL)


@pytest.mark.usefixtures("may_set")
def test_what_a_machine_is_told_of_has_these_keys(virtual_nvml: None, written: Path, tmp_path: Path) -> None:
    with spawn("sim:h200*2") as node:
        environ = node.environment({**os.environ, "JOULEWISE_HOME": str(tmp_path)})
        folders = ("--state", str(tmp_path / "state"), "--socket", str(tmp_path / "none"))
        told = preloaded.run("doctor", "--json", env=environ, check=True).stdout
        check("json-doctor", keys(one(told)))
        told = preloaded.run("restore", *folders, "--json", env=environ, check=True).stdout
        check("json-restore", keys(one(told)))


def test_virtual_gpus_that_stay_up_are_told_with_these_keys(virtual_nvml: None) -> None:
    with preloaded.Command("sim", "--gpu", "sim:h200*2", "--json", stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        where = json.loads(running.stdout.readline())
        running.terminate()
    check("json-sim", keys(where, ("environment",)))


def test_a_live_cluster_tells_with_these_keys(tmp_path: Path) -> None:
    environ = {**os.environ, "JOULEWISE_HOME": str(tmp_path), "OPENBLAS_NUM_THREADS": "1"}
    where = ("--socket", str(tmp_path / "cluster.sock"), "--database", str(tmp_path / "cluster.db"), "--port", "0")
    virtual = ("--engine", "sim", "--gpu", "sim:a100-sxm*16", "--speed", "300", "--power-cap", "9kW")
    with preloaded.Command("cluster", "up", *virtual, *where, env=environ, stderr=subprocess.PIPE) as up:
        assert up.stderr is not None
        server = next(found[1] for line in up.stderr if (found := re.search(r"scheduling on (unix:\S+) and", line)))

        def told(*words: str) -> str:
            done = preloaded.run("cluster", *words, "--server", server, env=environ, cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            return done.stdout

        elastic = ("--gpus", "8", "--checkpoint", "c", "--steps", "60000", "--workload", "bert", "--engine", "sim")
        check("json-cluster-submit", keys(one(told("submit", "--name", "a", *elastic, "--json", "--", "train"))))
        while not any(job["state"] == "running" for job in one(told("status", "--json"))["jobs"]):
            pass
        first = told("status", "--json")
        check("json-cluster-status", keys(one(first), VARIED["cluster-status"]))
        check("json-cluster-explain-live", keys(one(told("explain", "a", "--json"))))
        check("json-cluster-cap", keys(one(told("cap", "4.5kW", "--for", "3h", "--json"))))
        check("json-cluster-budget", keys(one(told("budget", "120kWh/day", "--json"))))
        later = told("status", "--json")
        check("json-cluster-cancel", keys(one(told("cancel", "a", "--json"))))
        up.terminate()
        up.stderr.read()
    watched = tmp_path / "watched.jsonl"
    watched.write_text("".join(json.dumps(one(each)) + "\n" for each in (first, later)))
    report = preloaded.run(
        "cluster", "report", str(watched), "--database", str(tmp_path / "cluster.db"), "--json", env=environ, check=True
    )
    check("json-cluster-report", keys(one(report.stdout)), ("cuts[].", "jobs[].", "stretches[]."))
