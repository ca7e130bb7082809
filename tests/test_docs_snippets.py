"""What the documents tell people to type is there: every command is held against the program's own flags, every import
against the code; and the tutorial is played from its first command to its last. What else is typed, and run, is the
business of ``test_docs_commands``, ``test_docs_slurm`` and ``test_docs_python``."""

import ast
import importlib
import importlib.util
import re
import shlex
import sys

import pytest
from docs.make import commands as reference

from tests.docs_desk import Desk
from tests.docs_pages import NAMES, PAGES, ROOT, commands, python

TUTORIAL = ROOT / "docs" / "tutorial.md"
VERBS = dict(reference.verbs())
PEOPLE_S_OWN = {"transformers", "lightning", "wandb", "torch"}
"""Imported by examples for those who have them."""
ENDS_A_COMMAND = ("|", ">", "&&", "&", ";")


def shown(page):
    """Our commands in a page, whole ones and those within a sentence, from the verb on."""
    typed = [found for command in commands(page) for found in re.findall(r"\bjoulewise ([a-z].*)", command.text)]
    prose = re.sub(r"^ *```.*?^ *```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    return [*typed, *re.findall(r"`joulewise ([a-z]+(?: [^`\n]*)?)`", prose)]


def offers(module, name):
    """Whether a module has a name; one that needs somebody's package, which is not here, has it as well."""
    try:
        return hasattr(module, name)
    except ImportError:
        return True


@pytest.mark.slow
@pytest.mark.face
@pytest.mark.usefixtures("virtual_nvml")
def test_the_tutorial_can_be_followed_from_its_first_command_to_its_last(tmp_path):
    desk = Desk(tmp_path, cold=True)
    lines = [command.text for command in commands(TUTORIAL) if "pip install" not in command.text]
    assert len(lines) > 5
    said = []
    for line in lines:
        # the same commands on a job of a tenth of the length: what it saves is the business of other tests
        said.append(desk.type(re.sub(r"--steps (\d+)", lambda steps: f"--steps {int(steps[1]) // 10}", line)))
        assert said[-1].code == 0, said[-1]
    measured, tuned, verified, history, _, set_by_hand = (each.words for each in said)
    assert re.search(r"joulewise: [\d.]+ ± [\d.]+ k?J in ", measured)
    assert "the report is report.html" in tuned
    assert "verified: recomputed from the journal" in verified
    assert history.count("python examples/train_virt") == 2
    assert "power limit 500 W, restored to 700 W" in set_by_hand
    (block,) = python(TUTORIAL)
    (tmp_path / "inside.py").write_text(block.text, "utf-8")
    ran = desk.type("python inside.py")
    assert ran.code == 0, ran
    assert ran.words.startswith("nothing at all: "), ran


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_the_flags_of_every_command_that_a_page_shows_exist(page):
    wrong = []
    for line in shown(page):
        words = shlex.split(re.sub(r"\$\([^)]*\)|…", "VALUE", line.replace("'…'", "")), comments=True)
        names = [" ".join(words[:n]) for n in (2, 1) if " ".join(words[:n]) in VERBS]
        if not names:
            wrong.append(line)
            continue
        rest = words[len(names[0].split()) :]
        ours = rest[: rest.index("--")] if "--" in rest else rest
        ours = ours[: next((i for i, word in enumerate(ours) if word in ENDS_A_COMMAND), len(ours))]
        given = {word.partition("=")[0] for word in ours if re.match(r"--?[a-z]", word)}
        if given - reference.flags(VERBS[names[0]]):
            wrong.append(line)
    assert wrong == []


def test_commands_are_found_in_the_pages():
    assert sum(len(shown(page)) for page in PAGES) > 150


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_the_python_of_every_page_is_python_and_what_it_takes_from_us_is_there(page):
    for block in python(page):
        for node in ast.walk(ast.parse(block.text)):
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
