"""What the documents tell people to type works: the tutorial is played from its first command to its last, and every
other command and line of Python is held against the program that it names."""

import ast
import importlib
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from docs.make import commands

ROOT = Path(__file__).parent.parent
PAGES = sorted({ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "packaging").rglob("*.md")})
TUTORIAL = ROOT / "docs" / "tutorial.md"
VERBS = dict(commands.verbs())
PEOPLE_S_OWN = {"transformers", "lightning", "wandb", "torch"}
"""Imported by examples for those who have them."""


def blocks(page, language):
    return [
        textwrap.dedent(text)
        for text in re.findall(rf"^( *```{language}\n.*?)^ *```$", page, flags=re.MULTILINE | re.DOTALL)
    ]


def snippets(page, language):
    text = page.read_text("utf-8")
    return [block.partition("\n")[2] for block in blocks(text, language)]


def typed(page):
    """Our commands in a page's code, as somebody would type them; continued lines are one."""
    text = re.sub(r"\$\([^)]*\)", "VALUE", page.read_text("utf-8").replace("\\\n", " "))
    prose, *fenced = re.split(r"^ *```", text, flags=re.MULTILINE)
    code = [*fenced[::2], *re.findall(r"^ {4,}.*$", "\n".join((prose, *fenced[1::2])), flags=re.MULTILINE)]
    return re.findall(r"^ *(?:\$ )?(joulewise [a-z].*)$", "\n".join(code), flags=re.MULTILINE)


def offers(module, name):
    """Whether a module has a name; one that needs somebody's package, which is not here, has it as well."""
    try:
        return hasattr(module, name)
    except ImportError:
        return True


def at_a_desk(folder):
    """How to run what a reader types, in ``folder``: with our programs, our examples and a history of its own."""
    (folder / "examples").symlink_to(ROOT / "examples")
    programs = folder / "bin"
    programs.mkdir()
    (programs / "python").symlink_to(sys.executable)
    (programs / "joulewise").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m joulewise "$@"\n')
    (programs / "joulewise").chmod(0o755)
    environ = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "JOULEWISE_HOME": str(folder / "home"),
        "OPENBLAS_NUM_THREADS": "1",
    }
    return {"cwd": folder, "env": environ, "capture_output": True, "text": True, "timeout": 200}


@pytest.mark.slow
@pytest.mark.face
@pytest.mark.usefixtures("virtual_nvml")
def test_the_tutorial_can_be_followed_from_its_first_command_to_its_last(tmp_path):
    talk = at_a_desk(tmp_path)
    said = []
    lines = [line for block in snippets(TUTORIAL, "sh") for line in block.replace("\\\n", "").splitlines()]
    assert len(lines) > 5
    for line in lines:
        # the same commands on a job of a tenth of the length: what it saves is the business of other tests
        shorter = re.sub(r"--steps (\d+)", lambda steps: f"--steps {int(steps[1]) // 10}", line)
        ran = subprocess.run(shorter, shell=True, **talk)
        assert ran.returncode == 0, f"{line}\n{ran.stdout}{ran.stderr}"
        said.append(ran.stdout + ran.stderr)
    measured, tuned, verified, history, _, set_by_hand = said
    assert re.search(r"joulewise: [\d.]+ ± [\d.]+ k?J in ", measured)
    assert "the report is report.html" in tuned
    assert "verified: recomputed from the journal" in verified
    assert history.count("python examples/train_virtual.py") == 2
    assert "power limit 500 W, restored to 700 W" in set_by_hand
    (program,) = snippets(TUTORIAL, "python")
    ran = subprocess.run([sys.executable, "-c", program], **talk)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("nothing at all: ")


def test_the_first_example_of_a_cluster_runs(tmp_path):
    example, *_ = snippets(ROOT / "docs" / "cluster.md", "")
    assert "cluster simulate" in example
    ran = subprocess.run(["bash", "-ec", example], **at_a_desk(tmp_path))
    assert ran.returncode == 0, ran.stderr
    assert "priced has the shortest mean completion time" in ran.stdout
    assert (tmp_path / "cluster.html").stat().st_size > 10_000


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_the_flags_of_every_command_that_a_page_shows_exist(page):
    wrong = []
    for line in typed(page):
        words = shlex.split(line.replace("…", ""), comments=True)[1:]
        names = [" ".join(words[:n]) for n in (2, 1) if " ".join(words[:n]) in VERBS]
        if not names:
            wrong.append(line)
            continue
        rest = words[len(names[0].split()) :]
        ours = rest[: rest.index("--")] if "--" in rest else rest
        ours = ours[: next((i for i, word in enumerate(ours) if word in ("|", ">", "&&", "&", ";")), len(ours))]
        given = {word.partition("=")[0] for word in ours if re.match(r"--?[a-z]", word)}
        if given - commands.flags(VERBS[names[0]]):
            wrong.append(line)
    assert wrong == []


def test_commands_are_found_in_the_pages():
    assert sum(len(typed(page)) for page in PAGES) > 60


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_the_python_of_every_page_is_python_and_what_it_takes_from_us_is_there(page):
    for code in snippets(page, "python"):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "joulewise":
                module = importlib.import_module(node.module)
                for each in node.names:
                    inside = f"{node.module}.{each.name}"
                    assert offers(module, each.name) or importlib.util.find_spec(inside), inside
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "joulewise":
                assert node.attr in importlib.import_module("joulewise").__all__ or importlib.util.find_spec(
                    f"joulewise.{node.attr}"
                )
            elif isinstance(node, ast.Import):
                ours = [each.name for each in node.names if each.name.split(".")[0] not in sys.stdlib_module_names]
                assert [name for name in ours if name.split(".")[0] not in {"joulewise", *PEOPLE_S_OWN}] == []
