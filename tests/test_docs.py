"""What the documents say is so: links lead somewhere, tests that they name exist, examples are understood."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import get_args

import pytest

from joulewise import native
from joulewise.cli import VERBS
from joulewise.core.knob import Setting
from joulewise.daemon import site
from joulewise.device import wire
from joulewise.device.node import spawn
from joulewise.plan import plan_files
from tests.daemon.running import running_daemon
from tests.plan.made_up import plan

ROOT = Path(__file__).parent.parent
PAGES = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "packaging").rglob("*.md")})


def names(pages: list[Path]) -> list[str]:
    return [str(page.relative_to(ROOT)) for page in pages]


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)]+)\)", text):
        path, _, heading = link.partition("#")
        if "://" in link:
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if heading:
            found = re.findall(r"^#+ (.*)$", target.read_text("utf-8"), flags=re.MULTILINE)
            assert heading in {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in found}, link


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_tests_that_are_named_exist(page):
    for file, test in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text("utf-8")):
        assert re.search(rf"^ *def {test}\(", (ROOT / file).read_text("utf-8"), flags=re.MULTILINE), f"{file}::{test}"


def test_every_promise_of_the_security_page_names_its_test():
    page = (ROOT / "docs" / "security.md").read_text("utf-8")
    tables = [table.splitlines() for table in re.findall(r"(?:^\|.*\n)+", page, flags=re.MULTILINE)]
    promises = [row for heading, _, *rows in tables if heading.endswith("| test |") for row in rows]
    assert len(promises) > 20
    assert [row for row in promises if "`tests/" not in row] == []


def test_the_site_file_in_the_documentation_is_understood(tmp_path):
    page = (ROOT / "docs" / "control.md").read_text("utf-8")
    example = re.search(r"```toml\n(.*?)```", page, flags=re.DOTALL)[1]
    assert tomllib.loads(example)
    file = tmp_path / "site.toml"
    file.write_text(example)
    file.chmod(0o644)
    policy = site.load(file)
    assert policy.baseline("GPU-1") == Setting(sm_mhz=1500)
    assert [rule.users for rule in policy.rules] == [{1000, 1001}]


def test_every_op_of_the_wire_is_documented_and_no_other():
    page = (ROOT / "docs" / "control.md").read_text("utf-8").partition("## The wire protocol")[2]
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    assert {op for row in rows for op in re.findall(r"`(\w+)`", row)} == {
        each.__name__.lower() for each in get_args(wire.Request)
    }


def test_every_verb_is_in_the_documentation_of_the_command_line():
    page = (ROOT / "docs" / "cli.md").read_text("utf-8")
    assert [verb for verb in VERBS if not re.search(rf"^\| `{verb}\b", page, flags=re.MULTILINE)] == []


def test_every_key_of_a_plan_is_in_the_documentation_of_plans_and_no_other():
    page = (ROOT / "docs" / "plans.md").read_text("utf-8").partition("## The plan is data")[2]
    rows = re.findall(r"^\| (`.*?) \|", page.partition("## ")[0], flags=re.MULTILINE)
    written = plan_files.to_json(plan())
    assert {key for row in rows for key in re.findall(r"`(\w+)`", row)} == set(written)
    for key in ("identity", "schedule", "costs"):
        (row,) = re.findall(rf"^\| `{key}` \| (.*)$", page, flags=re.MULTILINE)
        assert [name for name in written[key] if f"`{name}`" not in row] == []


def test_the_python_in_the_documentation_of_control_runs(tmp_path):
    try:
        native.library_path()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    page = (ROOT / "docs" / "control.md").read_text("utf-8")
    code = re.search(r"```python\n(.*?)```", page, flags=re.DOTALL)[1]
    with spawn("sim:h200") as node, running_daemon(node, tmp_path) as daemon:
        environ = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "JOULEWISE_SOCKET": str(daemon.socket)}
        ran = subprocess.run(
            [sys.executable, "-c", "def train_for_a_while(): pass\n" + code],
            env=node.environment(environ),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (ran.returncode, ran.stderr) == (0, "")
        assert [float(limit) for limit in re.findall(r"power_limit_w=(\d+)", ran.stdout)] == [700, 600, 500]
