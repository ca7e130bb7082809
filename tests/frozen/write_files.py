"""Writes what this version leaves on a disk, for ``tests/frozen/written``: later versions must read it.

    python -m tests.frozen.write_files FOLDER       # as root: it sets virtual GPUs through a daemon

Made by commands that users type: a tuned run, a plain one and one that was killed, three recurrences of a job, a
cluster under a cap (all in one store), a recording, profiles, plans of both versions, the settings that a killed daemon
had saved, a grant and a token. What lies in ``written`` is never written anew: it is what is out there.
"""

from __future__ import annotations

import gzip
import importlib.util
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

from joulewise.core.knob import Setting
from joulewise.device.node import spawn
from joulewise.device.remote import RemoteLease
from joulewise.plan import plan_files, profile_files
from tests.daemon.running import running_daemon
from tests.plan import made_up

ROOT = Path(__file__).parents[2]
STORE, RECORDING, SETTINGS = "store.db.gz", "recording.jsonl", "settings"
GPU = "GPU-0d0fa1f3-5c3a-4d0e-9f55-0c3f52a0b1c2"
SITE = '[baseline."*"]\nmemory_mhz = 1593\n[[rule]]\nusers = "*"\nneeds = "nothing"\n'


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="jw-") as name:
        home = Path(name)
        demo = _demo().Demo(home, quick=True)
        demo.plan()
        demo.plain_run()
        demo.tuned_run("recommender", 1600)
        demo.killed_run()
        demo.recurring(3)
        demo.cluster()
        shutil.copy(home / "plans" / "four-stages.json", folder / "plan-1.json")
        shutil.copy(home / "profile.csv", folder / "profile.csv")
        _pack(home / "joulewise.db", folder / STORE)
        record = ("run", "--gpu", "sim:h200", "--speed", "20", "--no-keep", "--record", str(folder / RECORDING), "--")
        _joulewise(*record, sys.executable, "examples/train_virtual.py", "--epochs", "1", "--steps", "20")
        _joulewise("serve", "token", "--scope", "write", "--name", "frozen", "--token-file", str(folder / "tokens"))
        grants = ("--grants", str(folder / "grants"), "--job", "frozen", "--uid", "1000", "--for", "3650d")
        _joulewise("grant", "add", *grants, "--gpu", GPU, "--knob", "sm_mhz=345..1500")
    partitioned = made_up.partitioned(made_up.plan())
    plan_files.write(partitioned, folder / "plan-2.json")
    profile_files.write(partitioned.profile, folder / "profile-2.json")
    profile_files.write(made_up.profile(3), folder / "profile-1.json")
    _settings(folder / SETTINGS)


def _demo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("demo_face", ROOT / "examples" / "demo_face.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _joulewise(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "joulewise", *words], cwd=ROOT, check=True, env={**os.environ})


def _pack(database: Path, to: Path) -> None:
    """A store as one file, without what was left of earlier writes."""
    compact = database.with_name("compact.db")
    base = sqlite3.connect(database)
    base.execute("VACUUM INTO ?", (str(compact),))
    base.close()
    to.write_bytes(gzip.compress(compact.read_bytes(), 9, mtime=0))


def _settings(folder: Path) -> None:
    """What a daemon that was killed owes: a cap and a clock of one GPU, a cap of another."""
    folder.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="jw-") as name,
        spawn("sim:h200*2") as node,
        running_daemon(node, Path(name), site=SITE) as daemon,
        node.client() as client,
    ):
        knobs = ["power_limit_w", "sm_mhz"]
        leases = [RemoteLease.take([uuid], knobs, socket=daemon.socket) for uuid in client.uuids]
        leases[0].apply(Setting(power_limit_w=300, sm_mhz=1200))
        leases[1].apply(Setting(power_limit_w=450))
        daemon.kill()
        for uuid in client.uuids:
            shutil.copy(daemon.state / f"{uuid}.jsonl", folder)
        daemon.start()  # it gives them back


if __name__ == "__main__":
    main(Path(sys.argv[1]))
