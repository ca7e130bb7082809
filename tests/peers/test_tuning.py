"""Training programs that we did not write, unchanged, tuned by a user without root's rights through the daemon.

Everything is a process of its own, as in life: virtual GPUs that live fifteen times as fast as the wall, the daemon,
which is root's and has its default rules, and a user (another uid, no capability) who types ``joulewise run --tune``
before the command. The programs compute on the processor and take their steps on a virtual H200.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from joulewise.core.units import watts_from_milliwatts
from joulewise.device.couple_torch import environment
from joulewise.device.node import NodeClient, RunningNode, spawn
from joulewise.device.vnvml_layout import VnvmlState
from tests.daemon.running import RunningDaemon, running_daemon, until
from tests.peers.test_training import text

pytestmark = [
    pytest.mark.alone,
    pytest.mark.exhaustive,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user, too"),
]

AS_USER = Path(__file__).parent / "clients" / "as_user.py"
USER = 12345
SPEED = 15.0
LOAD = "diffusion"
"""Steps of 0.75 s, so that at fifteen times the speed a step of the program itself has 50 ms to hide in."""
SITE_CAP_W = 690.0
"""What the site had set before: not the vendor's default, so that a reset is no restore."""
LONGEST_S = 150.0
# The program as it is, but the same each time: these two draw their first weights, and masks, at random.
SEEDED = (
    "import random, runpy, sys, torch; random.seed(0); torch.manual_seed(0); sys.argv = sys.argv[1:]; "
    "sys.path[0] = ''; runpy.run_path(sys.argv[0], run_name='__main__')"
)


@dataclass
class Site:
    """A machine with a virtual GPU and our daemon, and a user's home on it."""

    node: RunningNode
    breaker: NodeClient
    daemon: RunningDaemon
    words: VnvmlState
    home: Path

    def hardware(self) -> tuple[float, object, object]:
        """Power limit and both clock locks, as the driver holds them."""
        control = self.words.read_control(0)
        return watts_from_milliwatts(control.power_limit_mw), control.sm_lock_mhz, control.memory_lock_mhz

    def run(self, *command: str | Path, environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """What the user's command says and how it ends."""
        own = {"HOME": str(self.home), "JOULEWISE_SOCKET": str(self.daemon.socket), "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            [sys.executable, AS_USER, f"{USER}", *command],
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
            cwd=self.home,
            env={**(os.environ if environ is None else environ), **own, "COLUMNS": "160"},
        )

    def joulewise(self, *arguments: str | Path, coupled: bool = False) -> subprocess.CompletedProcess[str]:
        """``joulewise`` typed by the user, where its virtual GPUs can be seen."""
        foreign = ("XDG_DATA_HOME", "JOULEWISE_HOME", "PYTHONPATH")
        environ = self.node.environment({name: value for name, value in os.environ.items() if name not in foreign})
        return self.run(
            *(sys.executable, "-m", "joulewise", *arguments), environ=environment(environ, LOAD) if coupled else environ
        )


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with ExitStack() as ending:
        # Not in pytest's folder, which every session that begins closes to other users again.
        folder = Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="joulewise-site-")))
        folder.chmod(0o755)
        home = folder / "home"
        home.mkdir()
        os.chown(home, USER, USER)
        node = ending.enter_context(spawn("sim:h200", speed=SPEED))
        breaker = ending.enter_context(node.client())
        breaker.fault(0, "foreign", power_limit_w=SITE_CAP_W)
        daemon = ending.enter_context(running_daemon(node, folder / "daemon"))
        yield Site(node, breaker, daemon, ending.enter_context(closing(VnvmlState.open(node.directory))), home)


def tuned_like_untuned(site: Site, command: list[str | Path], steps: int, said: str) -> dict[str, Any]:
    """Run ``command`` alone, then tuned: the same output and exit code, and a GPU that is as before. The result."""
    before, steps_before = site.hardware(), site.breaker.status()["coupled"]["steps"]
    assert before[0] == SITE_CAP_W
    alone = site.run(*command)
    assert alone.returncode == 0, alone.stderr
    assert said in alone.stdout

    flags = ("--max-slowdown", "10%", "--seed", "1", "--json", "result.json", "--report", "report.html")
    tuned = site.joulewise("run", "--tune", *flags, "--", *command, coupled=True)

    assert tuned.returncode == 0, tuned.stderr
    assert tuned.stdout == alone.stdout  # every loss and reward to the last digit
    assert site.breaker.status()["coupled"]["steps"] - steps_before == steps
    until(lambda: site.hardware() == before, 2.0)
    result = json.loads((site.home / "result.json").read_text())
    assert result["exit_code"] == 0
    assert result["tune"]["headline"] in tuned.stderr
    return dict(result["tune"])


def check(site: Site, tune: dict[str, Any]) -> None:
    """It was tuned through the daemon, a saving is claimed with its interval, and the claim can be recomputed."""
    assert tune["untuned"] is None, tune
    written = site.daemon.audited(op="apply", result="ok")
    assert {line["uid"] for line in written} == {USER}
    assert any(line["knob"] == "sm_mhz" and "after" in line for line in written), "a clock was set through the daemon"
    held = [each for each in tune["changes"] if each["what"] == "hold" and each["setting"]]
    assert held, tune["changes"]
    claim = tune["claim"]
    # By the law the best within 10 % saves 9 % of this load's energy; what it took to find it is counted, too.
    assert claim["energy_change"] + claim["energy_half"] < 0, tune["headline"]
    assert claim["time_change"] - claim["time_half"] < 0.10, tune["headline"]
    verified = site.joulewise("verify", "report.html")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert tune["run"] in site.joulewise("history").stdout


@pytest.mark.slow
def test_an_actor_critic_of_somebody_else_is_tuned_for_a_user_without_rights(
    peers: Path, actor_critic: Path, site: Site
) -> None:
    steps = 450
    # Without a discounted future it never learns to balance, so that its episodes stay as short as at first.
    script = [actor_critic, "--max-episodes", f"{steps}", "--gamma", "0", "--log-interval", "50"]
    tune = tuned_like_untuned(site, [peers / "python", "-c", SEEDED, *script], steps, f"Episode {steps}")
    check(site, tune)


@pytest.mark.slow
def test_a_bert_with_loader_processes_is_tuned_for_a_user_without_rights(peers: Path, site: Site) -> None:
    steps, batch = 450, 4
    corpus, vocabulary = site.home / "corpus.txt", site.home / "vocabulary"
    corpus.write_text(text(steps * batch))
    corpus.chmod(0o644)
    made = site.run(peers / "bert-vocab", "-c", corpus, "-o", vocabulary)
    assert made.returncode == 0, made.stderr
    bert = [peers / "bert", "-c", corpus, "-v", vocabulary, "-o", site.home / "model", "--log_freq", "50"]
    small = ["--hidden", "16", "--layers", "1", "--attn_heads", "2", "--batch_size", f"{batch}"]
    command = [peers / "python", "-c", SEEDED, *bert, *small, "--epochs", "1", "--num_workers", "1"]
    tune = tuned_like_untuned(site, command, steps, "avg_loss")
    check(site, tune)
