"""What the pages of the documentation tell people to type: found by reading them, so that no snippet is forgotten.

A command is a line of an ``sh`` block, or a line of another block or of an indented one that begins with a program
that people type. Lines that end in a backslash are one, and so is a file that is written with ``<<``. Where a block
has lines with a prompt (``$ ``), the others are what is printed.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PAGES = sorted({ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "packaging").rglob("*.md")})
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
PROGRAMS = (
    *("joulewise", "python", "python3", "pip", "make", "torchrun", "gpustat", "nvitop", "docker", "srun", "sbatch"),
    *("sqlite3", "psql", "createuser", "createdb", "cat", "cp", "ln", "systemctl", "export", "for", "curl", ".", "git"),
)
"""What a line of code begins with, if it is to be typed."""
_NOT_TYPED = {"python", "json", "toml", "yaml", "csv", "text", "html", "promql"}
"""Languages of blocks that nobody types into a shell."""


class Block(NamedTuple):
    """A piece of code in a page: its language ("" where none is said, "indented" without a fence) and its text."""

    page: str
    line: int
    language: str
    text: str


class Command(NamedTuple):
    """Something to type, whole, and where it stands."""

    page: str
    line: int
    text: str


def blocks(page: Path) -> Iterator[Block]:
    """All code of a page, in its order."""
    name = str(page.relative_to(ROOT))
    fence: tuple[int, str] | None = None
    held: list[str] = []
    begun = 0
    for number, line in enumerate([*page.read_text("utf-8").splitlines(), ""], 1):
        mark = re.match(r" *```(\w*)", line)
        indented = fence is None and re.match(r" {4}", line) and (held or line.strip())
        if held and (mark or (fence is None and not indented and line.strip())) and fence is None:
            yield Block(name, begun, "indented", textwrap.dedent("\n".join(held)).strip("\n"))
            held = []
        if mark and fence is None:
            fence, begun = (number, mark[1]), number + 1
        elif mark and fence is not None:
            yield Block(name, begun, fence[1], textwrap.dedent("\n".join(held)).strip("\n"))
            fence, held = None, []
        elif fence is not None:
            held.append(line)
        elif indented:
            begun = begun if held else number
            held.append(line)
    if held:
        yield Block(name, begun, "indented", textwrap.dedent("\n".join(held)).strip("\n"))


def commands(page: Path) -> list[Command]:
    """What a page tells people to type, in its order."""
    found = []
    for block in blocks(page):
        if block.language in _NOT_TYPED:
            continue
        prompted = re.search(r"^\$ ", block.text, flags=re.MULTILINE) is not None
        for number, text in _whole_lines(block.text):
            line = text.removeprefix("$ ") if prompted and text.startswith("$ ") else text
            typed = line != text if prompted else block.language == "sh" or _begins_with_a_program(line)
            if typed and line.strip() and not line.startswith("#"):
                found.append(Command(block.page, block.line + number, line.strip()))
    return found


def python(page: Path) -> list[Block]:
    """The Python of a page, in its order."""
    return [block for block in blocks(page) if block.language == "python"]


def _begins_with_a_program(line: str) -> bool:
    word = line.split(" ")[0]
    return word in PROGRAMS or (word.startswith("/") and "/bin/" in word)


def _whole_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with those that continue them."""
    lines = iter(enumerate(text.splitlines()))
    for number, line in lines:
        whole = line
        while whole.endswith("\\"):
            whole = whole[:-1].rstrip() + " " + next(lines)[1].strip()
        if end := re.search(r"<<'?(\w+)'?", whole):
            for _, more in lines:
                whole += "\n" + more
                if more == end[1]:
                    break
        yield number, whole
