"""Whatever lies where a path of the command line points, an ordinary user gets one clear line, never a traceback.

``READ`` and ``WRITTEN`` have a row for every option and argument that takes a path; a new one without a row fails
``test_every_option_that_takes_a_path_has_a_row``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from joulewise.cli import VERBS
from joulewise.cluster.scheduler_status import Status
from joulewise.cluster.state import Prices
from joulewise.core.plain import plain
from joulewise.core.timeline import VirtualTime
from joulewise.device.recording import Recorder
from joulewise.device.virtual import VirtualGpu
from joulewise.model import catalog
from joulewise.plan import plan_files
from tests.cli.many_calls import NOBODY
from tests.plan import made_up
from tests.plan.traced_job import Truth, fsdp
from tests.tiers import sample

ROOT = Path(__file__).parents[2]
DEEP = 100_000
KINDS = {
    "unreadable": None,
    "missing": None,
    "directory": None,
    "closed": None,
    "too-long": None,
    "loop": None,
    "empty": b"",
    "binary": bytes(range(256)) * 8,
    "deep list": b"[" * DEEP,
    "deep object": b'{"a":' * DEEP,
    "deep tables": b"a = " + b"[" * DEEP,
}
"""What lies there; a file's content, where it is one that can be read."""
PLACES = {"closed": "closed/file", "too-long": "x" * 300, "loop": "loop"}
"""A file in a folder that only root may enter, a name that no file system takes, a link to itself."""
ENDINGS = ("", ".csv", ".toml", ".svg", ".html", ".jsonl")
STORE = {"missing", "empty"}
"""What becomes a store, or is one without anything in it."""
NO_STORE = {"missing", "loop"}
"""Where a look finds that there is nothing yet."""
EVERY = set(KINDS)
SERVER = "--server http://127.0.0.1:9"
SUBMIT = "cluster submit --name a --gpus 1 --engine sim"


@dataclass(frozen=True)
class Row:
    """How an option is called (``@``: the path; other names are files that are right), and what is no fault of it."""

    call: str
    fine: frozenset[str] = frozenset()
    """Kinds that are no fault: the exit code may be 0, or that of something else."""
    never: frozenset[str] = frozenset()
    """Kinds with which it is not called: it would go on for ever, or go on to what this is not about."""
    remarks: int = 0
    """Lines that it may say besides."""


def row(call: str, *, fine: Collection[str] = (), never: Collection[str] = (), remarks: int = 0) -> Row:
    return Row(call, frozenset(fine), frozenset(never), remarks)


_SERIES = {"recur status": "job", "recur history": "job", "recur frontier": "job", "recur list": ""}
_UP = "cluster up --engine sim --gpu sim:a100*2 --port 0 --database"
READ: dict[str, Row] = {
    "run --gpu": row("run --no-keep --gpu replay:@ -- true"),
    "recur run --gpu": row(
        "recur run --job a --gpu replay:@ --batch-sizes 8 --target x>=1 --database {home}/a.db -- true"
    ),
    "recur run --database": row("recur run --job a --gpu sim:h200 --database @ -- true", fine=STORE, remarks=9),
    "recur run --token-file": row(f"recur run --job a --gpu sim:h200 {SERVER} --token-file @ -- true", never={"empty"}),
    **{
        f"{verb} --database": row(f"{verb} {job} --database @", fine={"missing", "loop"})
        for verb, job in _SERIES.items()
    },
    **{f"{verb} --token-file": row(f"{verb} {job} {SERVER} --token-file @") for verb, job in _SERIES.items()},
    "recur plot --database": row("recur plot job {home}/a.svg --database @"),
    "recur plot --token-file": row(f"recur plot job {{home}}/a.svg {SERVER} --token-file @"),
    "plan solve profile": row("plan solve @ --microbatches 4"),
    "plan solve --schedule": row("plan solve {profile} --schedule @.csv"),
    "plan show plan": row("plan show @"),
    "plan query plan": row("plan query @ --deadline 9s"),
    "plan check plan": row("plan check @ --gpu-name H200"),
    "plan check --gpu": row("plan check {plan} --gpu replay:@"),
    "plan xray traces": row("plan xray @"),
    "plan partitions table": row("plan partitions @"),
    "top --gpu": row("top --once --gpu replay:@"),
    "history --database": row("history --database @", fine=STORE),
    "report --database": row("report --database @"),
    "verify report": row("verify @"),
    "verify --database": row("verify some --database @"),
    # It serves, and tells whoever asks why the database does not answer: that may return, as a server does.
    "serve --database": row("serve --no-gpu --port 0 --database @", never=EVERY),
    "serve --token-file": row("serve --no-gpu --port 0 --database {home}/a.db --token-file @"),
    "serve --countersign-key": row(
        "serve --no-gpu --port 0 --database {home}/a.db --countersign-key @", fine={"missing"}, never={"missing"}
    ),
    "verify --key": row("verify some --database {home}/a.db --key @"),
    "countersign --database": row("countersign some --at http://127.0.0.1:9 --database @"),
    "countersign --token-file": row("countersign some --at http://127.0.0.1:9 --database {home}/a.db --token-file @"),
    "cluster up --site": row("cluster up --engine sim --gpu sim:a100*2 --port 0 --database {home}/a.db --site @"),
    "serve --plans": row("serve --no-gpu --port 0 --database {home}/a.db --plans @", never={"directory", "unreadable"}),
    "serve token --token-file": row("serve token --scope read --token-file @", fine=STORE, remarks=1),
    "estimate --token-file": row("estimate --prometheus http://127.0.0.1:9 --token-file @"),
    "estimate --password-file": row("estimate --prometheus http://127.0.0.1:9 --user a --password-file @"),
    "estimate --ca-file": row("estimate --prometheus https://127.0.0.1:9 --ca-file @"),
    "model fit sweep": row("model fit @ --name a"),
    "model train folder": row("model train @"),
    "model show name": row("model show @.toml"),
    "cluster up --tariff": row(
        "cluster up --engine sim --gpu sim:a100*2 --energy-budget 5kWh/day --tariff @ --database {home}/a.db --port 0"
    ),
    "cluster up --cap-file": row(
        "cluster up --engine sim --gpu sim:a100*2 --cap-file @ --cap-safe 15kW --database {home}/a.db --port 0",
        never=EVERY,
    ),
    "cluster up --database": row(f"{_UP} @", never=STORE),
    "cluster up --token-file": row(
        "cluster up --engine sim --gpu sim:a100*2 --port 0 --database {home}/a.db --token-file @"
    ),
    "cluster submit --frontier": row(f"{SUBMIT} --frontier @ {SERVER} -- true"),
    "cluster submit --token-file": row(f"{SUBMIT} {SERVER} --token-file @ -- true"),
    **{
        f"{verb} --token-file": row(f"{verb} {argument} {SERVER} --token-file @")
        for verb, argument in {
            "cluster status": "",
            "cluster cap": "20kW",
            "cluster budget": "5kWh/day",
            "cluster explain": "a",
            "cluster cancel": "a",
        }.items()
    },
    "cluster explain --trace": row("cluster explain a --at 1h --gpu sim:a100*2 --trace @"),
    "cluster explain --decisions": row("cluster explain a --at 1h --decisions @"),
    "cluster report watched": row("cluster report @"),
    "cluster report --meter": row("cluster report {watched} --meter @ --database {home}/a.db"),
    "cluster report --accounts": row("cluster report {watched} --accounts @ --database {home}/a.db"),
    "cluster report --database": row("cluster report {watched} --database @"),
    "cluster agent --token-file": row("cluster agent --node a --server http://127.0.0.1:9 --token-file @"),
    "cluster simulate trace": row("cluster simulate @ --gpu sim:a100*2"),
    "cluster simulate --tariff": row("cluster simulate {jobs} --gpu sim:a100*2 --energy-budget 5kWh/day --tariff @"),
    "grant list --grants": row("grant list --grants @", fine={"missing", "directory"}),
    "leases --state": row("leases --socket {home}/none --state @", fine={"missing"}),
    "leases --socket": row("leases --state {home} --socket @", fine=EVERY),
}
WRITTEN: dict[str, str] = {
    "run --json": "run --no-keep --gpu replay:{recording} --json @ -- true",
    "run --plot": "run --no-keep --gpu replay:{recording} --plot @.svg -- true",
    "run --record": "run --no-keep --gpu replay:{recording} --record @ -- true",
    "run --report": "run --tune --gpu sim:h200 --report @.html -- true",
    "recur run --json": "recur run --job a --gpu sim:h200 --database {home}/a.db --json @ -- true",
    "recur plot file": "recur plot job @.svg --database {home}/a.db",
    "plan solve --out": "plan solve {profile} --microbatches 4 --out @",
    "plan show --report": "plan show {plan} --report @.html",
    "plan show --plot": "plan show {plan} --plot @.svg",
    "plan xray --report": "plan xray {trace} --report @.html",
    "plan xray --plot": "plan xray {trace} --plot @.svg",
    "plan partitions --plot": "plan partitions {table} --plot @.svg",
    "plan profile --out": "plan profile --out @ -- true",
    "history --report": "history a --report @.html --database {home}/a.db",
    "report --out": "report --out @.html --database {home}/a.db",
    "report --plot": "report --plot @.svg --database {home}/a.db",
    "estimate --out": "estimate --prometheus http://127.0.0.1:9 --out @.html",
    "estimate --plot": "estimate --prometheus http://127.0.0.1:9 --plot @.svg",
    "model fit --output": "model fit {sweep} --name a --starts 1 --output @",
    "model train --output": "model train {home} --output @",
    "cluster report --out": "cluster report {watched} --database {home}/a.db --out @.html",
    "cluster simulate --plot": "cluster simulate {jobs} --gpu sim:a100*2 --plot @.svg",
    "cluster simulate --out": "cluster simulate {jobs} --gpu sim:a100*2 --out @.html",
    "cluster simulate --decisions": "cluster simulate {jobs} --gpu sim:a100*2 --decisions @.jsonl",
}
"""Files that a verb writes: refused where nobody may write, there is no folder, or a folder is."""
ELSEWHERE: dict[str, str] = {
    **dict.fromkeys(["serve --socket", "cluster up --socket"], "it is made there, and serves: tests/scenarios"),
    "estimate --user": "a name; the file beside it has its own row",
    "cluster submit --checkpoint": "a folder on the nodes, which need not be here",
    **dict.fromkeys(
        ("cluster agent --grants", "cluster agent --socket", "cluster agent --state"), "the agent runs as root"
    ),
    **dict.fromkeys(
        [f"daemon --{name}" for name in ("audit", "grants", "site", "socket", "state")], "the daemon runs as root"
    ),
    **dict.fromkeys(["grant add --grants", "grant remove --grants"], "for root"),
    **dict.fromkeys([f"restore --{name}" for name in ("grants", "site", "socket", "state")], "for root"),
    **dict.fromkeys(["stand --socket", "stand --state"], "for root"),
}
"""What is not for an ordinary user, and why: refused before any path is looked at, which is tested beside the verb."""


def path_options() -> Iterator[tuple[str, Any]]:
    """``("plan solve --schedule", option)`` of everything that takes a path, as its type, name or help says."""

    def walk(command: Any, words: list[str]) -> Iterator[tuple[str, Any]]:
        for param in command.params:
            long = next((name for name in param.opts if name.startswith("--")), param.opts[0])
            about = f"{param.metavar or ''} {getattr(param, 'help', '') or ''}"
            of_paths = "Path" in type(param.type).__name__ or re.search(r"\b([Ff]ile|FILE|DIR|FOLDER|REPORT)\b", about)
            if of_paths and not getattr(param, "is_flag", False):
                yield " ".join([*words, long]), param
        for name, below in getattr(command, "commands", {}).items():
            yield from walk(below, [*words, name])

    for name, verb in VERBS.items():
        yield from walk(verb.load(name), [name])


def test_every_option_that_takes_a_path_has_a_row() -> None:
    there = {name for name, _ in path_options()}
    assert there == {*READ, *WRITTEN, *ELSEWHERE}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that anybody may look into: what lies on a path of each kind, and files that are right."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        _lay(folder)
        yield folder


def _lay(folder: Path) -> None:
    for kind, content in KINDS.items():
        for ending in ENDINGS:
            path = folder / f"{kind.replace(' ', '-')}{ending}"
            if kind in PLACES:
                continue
            if kind == "directory":
                path.mkdir()
            elif kind == "unreadable":
                path.write_bytes(b"secret")
                path.chmod(0o600)
            elif content is not None:
                path.write_bytes(content)
    (folder / "closed").mkdir(0o700)
    for ending in ENDINGS:
        (folder / f"loop{ending}").symlink_to(folder / f"loop{ending}")
    home = folder / "home"
    home.mkdir()
    os.chown(home, NOBODY, NOBODY)
    rows = [
        f"{stage},{kind},{point.setting['sm_mhz']:g},{point.time_s!r},{point.energy_j!r}"
        for (stage, kind), points in made_up.profile(3).options.items()
        for point in points
    ]
    (folder / "profile.good").write_text("\n".join(["stage,instruction,frequency,time,energy", *rows]) + "\n")
    plan_files.write(made_up.plan(), folder / "plan.good")
    truth = Truth(fsdp(1, catalog.load("h200"), layers=1), catalog.load("h200"), seed=0)
    (folder / "trace.good").write_text(json.dumps(truth.kineto(rank=0, seed=0)))
    (folder / "table.good").write_text(
        "part,slot,sms,sm_mhz,time_s,energy_j\na,sequential,20,1410,0.003,0.9\na,rope,9,1410,0.0027,0.9\n"
    )
    (folder / "sweep.good").write_text("sm_mhz,time_s,power_w\n1000,2,300\n1400,1.5,400\n")
    (folder / "jobs.good").write_text("submitted_s,gpus,duration_s\n0,1,60\n")
    nothing = (0.0, 0.0, None, None, None, "", None, 0.0, 0.0, None, 0.0, 0.0)
    status = Status(1.0, 1, *nothing, Prices(), None, 0, None)
    (folder / "watched.good").write_text(json.dumps(plain(status)) + "\n")
    with Recorder(
        folder / "recording.good", [VirtualGpu(catalog.load("h200"), time=VirtualTime(), seed=1)]
    ) as recorder:
        recorder.close()


def _calls(folder: Path) -> Iterator[tuple[str, str, Row, dict[str, Any]]]:
    for name, each in READ.items():
        for kind in KINDS:
            if kind not in each.never:
                path = folder / PLACES.get(kind, kind.replace(" ", "-"))
                yield name, kind, each, _call(folder, each.call, path)
    for name, call in WRITTEN.items():
        for kind, path in (
            ("unwritable", folder / "unreadable"),
            ("no folder", folder / "none" / "file"),
            ("directory", folder / "directory"),
            *((kind, folder / place) for kind, place in PLACES.items()),
        ):
            yield name, kind, row(call), _call(folder, call, path)


def _call(folder: Path, call: str, path: Path) -> dict[str, Any]:
    words = call.format_map({"home": folder / "home", **{path.stem: path for path in folder.glob("*.good")}}).split()
    return {
        "args": [word.replace("@", str(path)) for word in words],
        "folder": str(folder / "home"),
        "environ": {"JOULEWISE_HOME": str(folder / "home"), "HOME": str(folder / "home"), "JOULEWISE_CONFIG": ""},
    }


@pytest.mark.sampled
@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, which only root may")
def test_whatever_lies_on_a_path_is_one_clear_line_for_an_ordinary_user(folder: Path, scenario: Any) -> None:
    shown = scenario("R35", "every option with a path, 11 kinds of path, as uid 65534", criterion="one line each")
    asked = sample(list(_calls(folder)), 120, of="calls with a path")
    done = subprocess.run(
        [sys.executable, "-m", "tests.cli.many_calls"],
        input=json.dumps([call for *_, call in asked]),
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        check=True,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(asked)
    faults = []
    for (name, kind, each, _), answer in zip(asked, answers, strict=True):
        lines = answer["err"].splitlines()
        fault = "Traceback" in answer["err"] or "a fault of joulewise" in answer["err"]
        refused = answer["code"] in (1, 2) and len(lines) <= 1 + each.remarks and lines[-1:] != []
        refused = refused and lines[-1].startswith("joulewise: ") and len(lines[-1]) < 1000 and answer["out"] == ""
        if fault or not (refused or (kind in each.fine and answer["code"] in (0, 1, 2))):
            faults.append(f"{name}, {kind}: {answer['code']} {answer['err'][-300:]!r} {answer['out'][:80]!r}")
    assert not faults, "\n".join(faults)
    shown.saw(f"{len(asked)} calls, {len(READ) + len(WRITTEN)} options, no traceback")
