"""R25: the systemd unit is tight, and not so tight that the daemon cannot do its work.

systemd judges the text. That the daemon lives inside is tried with the kernel's own means (see ``sandbox``), on
virtual GPUs, since systemd itself does not run where tests do.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from joulewise.cli import unit
from joulewise.device.node import spawn
from tests.daemon.running import Words, running_daemon, until

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "packaging" / "joulewise.service"
SANDBOX = Path(__file__).with_name("sandbox.py")
SOMEONE = 12345
ONLY_SYS_ADMIN = f"{1 << 21:016x}"

# Both load what they need as root, since another user may not read the interpreter's files, then give root away.
BECOMES_SOMEONE = f"os.setgroups([]); os.setresgid(*[{SOMEONE}] * 3); os.setresuid(*[{SOMEONE}] * 3)\n"
WORKS = (
    "import os\nfrom joulewise.device.work import work\n"
    f"work((0.01, 0.9, 400.0)); {BECOMES_SOMEONE}"
    "while True: work((0.2, 0.9, 400.0))"
)
SETS = (
    "import os, sys\nfrom joulewise.core.knob import Setting\nfrom joulewise.device.remote import RemoteLease\n"
    f"{BECOMES_SOMEONE}"
    "lease = RemoteLease.take(sys.argv[1:], ['power_limit_w', 'sm_mhz'])\n"
    "print(lease.apply(Setting(power_limit_w=400, sm_mhz=1200)).effective[sys.argv[1]]['power_limit_w'], flush=True)\n"
    "sys.stdin.read()"
)


@pytest.fixture(scope="module")
def systemd_analyze() -> str:
    found = shutil.which("systemd-analyze")
    if found is None:
        pytest.skip("systemd-analyze is not installed")
    return found


def test_the_unit_exposes_no_more_than_asked_for(scenario, systemd_analyze):
    shown = scenario("R25", "systemd-analyze security --offline on the unit", criterion="exposure ≤ 2.0")
    judged = subprocess.run(
        [systemd_analyze, "security", "--offline=true", "--threshold=20", "--no-pager", str(UNIT)],
        capture_output=True,
        text=True,
    )
    figure = re.search(r"Overall exposure level for joulewise.service: ([0-9.]+)", judged.stdout)
    assert figure, judged.stdout + judged.stderr
    shown.saw(f"exposure {figure[1]}")
    assert judged.returncode == 0
    assert float(figure[1]) <= 2.0


def test_systemd_finds_nothing_wrong_with_the_unit(systemd_analyze, tmp_path):
    # For this very Python, since systemd looks whether what it shall start is there.
    made = tmp_path / "joulewise.service"
    made.write_text(unit.text().replace(unit.SYSTEM_PYTHON, sys.executable))
    verified = subprocess.run([systemd_analyze, "verify", str(made)], capture_output=True, text=True)
    assert (verified.returncode, verified.stdout, verified.stderr) == (0, "", "")


@contextmanager
def running(code: str, *arguments: str, environ: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A Python program, killed in the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env=dict(environ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def rights_of(pid: int) -> dict[str, str]:
    """What the kernel lets a process do."""
    lines = [line.split(":\t") for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line]
    return {name: value for name, value in lines if name in ("CapEff", "CapBnd", "NoNewPrivs", "Seccomp")}


def test_the_daemon_and_the_restore_after_it_do_their_work_inside_what_the_unit_allows(systemd_analyze):
    rules = f'[[rule]]\nusers = [{SOMEONE}]\nneeds = "process"\n'
    stop_post = shlex.split(re.search("^ExecStopPost=(.*)$", UNIT.read_text(), re.MULTILINE)[1])
    with (
        spawn("sim:h200*2") as node,
        node.client() as breaker,
        closing(Words(node)) as words,
        # Not in pytest's folder, which every session that begins closes to other users again.
        tempfile.TemporaryDirectory(prefix="joulewise-") as folder,
        running_daemon(node, Path(folder) / "daemon", site=rules, start=False) as daemon,
        running(WORKS, environ=node.environment()),
    ):
        inside = [sys.executable, str(SANDBOX), str(UNIT), str(daemon.folder), str(node.directory), "--"]
        breaker.fault(0, "foreign", power_limit_w=650.0)
        daemon.prefix = inside
        daemon.start()
        only = {"CapEff": ONLY_SYS_ADMIN, "CapBnd": ONLY_SYS_ADMIN, "NoNewPrivs": "1", "Seccomp": "2"}
        assert rights_of(daemon.pid) == only
        # Whose process runs on the GPU is read in /proc of another user, without a right to more than that.
        until(lambda: breaker.truth(0).power_w > 200, what="the virtual GPU works")
        asking = {**node.environment(), "JOULEWISE_SOCKET": str(daemon.socket)}
        with running(SETS, breaker.uuids[0], environ=asking) as client:
            assert client.stdout.readline() == "400.0\n", daemon.stderr()
            assert (words.limit_w(0), words.sm_lock(0)[1]) == (400.0, 1200)
            daemon.kill()
            assert words.limit_w(0) == 400.0
            after = [sys.executable, *stop_post[1:], "--state", str(daemon.state)]
            ran = subprocess.run([*inside, *after], env=node.environment(), capture_output=True, text=True, timeout=60)
            assert ran.returncode == 0, ran.stderr
            assert (words.limit_w(0), words.sm_lock(0)) == (650.0, None)
