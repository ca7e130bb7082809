"""The Python of every page runs: on virtual GPUs, with the real frameworks, as it stands."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from joulewise.device.node import spawn
from joulewise.plan import plan_files
from tests.docs_desk import Desk
from tests.docs_pages import PAGES, ROOT, Block, python
from tests.frameworks.installed import python_path
from tests.plan.made_up import plan

PLAYER = Path(__file__).parent / "docs_player.py"
ELSEWHERE = {
    r"hold\(gpus\(\)": "tests/test_docs.py::test_the_python_in_the_documentation_of_control_runs",
    r"nothing at all": (
        "tests/test_docs_snippets.py::test_the_tutorial_can_be_followed_from_its_first_command_to_its_last"
    ),
    r"joulewise\.follow\(schedule\)": (
        "tests/frameworks/test_pipelining.py::test_only_the_first_rank_speaks_and_says_one_line"
    ),
    r"serve\.client": "tests/test_docs_commands.py::test_the_server_serves_as_the_pages_start_it",
}
"""Blocks that hold this are run by that test, which has what they talk to."""
WITH_TORCH = r"torch|Trainer|trainer|SummaryWriter|wandb|from_schedule"
SAYS = {
    "README.md": r"epoch: .* k?J in .*\(counter|integrated",
    "docs/plans.md": r"\[\('forward', 0, 0, ",
    "docs/virtual-gpus.md": r"^\d\.\d+ \d+",
    "docs/frameworks.md": r"saved|not tuned|nothing",
}
"""What a page's Python prints, where it prints."""


def all_blocks() -> list[Block]:
    found = [block for page in PAGES for block in python(page)]
    return [block for block in found if not any(re.search(each, block.text) for each in ELSEWHERE)]


def play(desk: Desk, interpreter: str | Path, how: str, blocks: Sequence[Block]) -> None:
    """Run them with the names of a reader; nothing may fail."""
    ran = subprocess.run(
        [interpreter, PLAYER, how],
        input=json.dumps([(block.page, block.text) for block in blocks]),
        cwd=desk.folder,
        env=desk.environ,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert ran.returncode == 0, ran.stderr
    outcomes = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith('{"printed"')]
    assert len(outcomes) == len(blocks), ran.stdout
    wrong = [
        f"{block.page}:{block.line}: {outcome['error'] or outcome['printed']}"
        for block, outcome in zip(blocks, outcomes, strict=True)
        if outcome["error"] or ("print(" in block.text and not re.search(SAYS[block.page], outcome["printed"], re.M))
    ]
    assert not wrong, "\n".join(wrong)


def test_what_others_run_is_run() -> None:
    everything = [block.text for page in PAGES for block in python(page)]
    for held, named in ELSEWHERE.items():
        assert any(re.search(held, text) for text in everything), held
        file, _, test = named.partition("::")
        assert re.search(rf"^def {test}\(", (ROOT / file).read_text("utf-8"), flags=re.MULTILINE), named


@pytest.mark.usefixtures("virtual_nvml", "may_set")
def test_the_python_of_the_pages_runs(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    plan_files.write(plan(), tmp_path / "plan.json")
    blocks = [block for block in all_blocks() if not re.search(WITH_TORCH, block.text)]
    assert len(blocks) > 6
    with spawn("sim:h200", speed=200.0) as node:
        desk.environ = node.environment(desk.environ)
        play(desk, sys.executable, "plain", blocks)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.usefixtures("virtual_nvml", "may_set")
def test_the_python_of_the_pages_runs_with_pytorch_hugging_face_and_lightning(
    tmp_path: Path, peers_python: Path
) -> None:
    desk = Desk(tmp_path, python=peers_python)
    (tmp_path / "installed").mkdir()
    desk.environ |= {"PYTHONPATH": python_path(tmp_path / "installed"), "HF_HUB_OFFLINE": "1"}
    blocks = [block for block in all_blocks() if re.search(WITH_TORCH, block.text)]
    assert len(blocks) > 8
    with spawn("sim:h200", speed=20.0) as node:
        desk.environ = node.environment(desk.environ)
        play(desk, peers_python, "torch", blocks)
