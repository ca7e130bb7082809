"""The pages of the site: docs/ as it is, with what it points to beside it, so that no link of the site leads nowhere.

Pages link to files of the repository, which a reader of the site may not have. Other Markdown pages are taken along,
under ``repository/``; of a link to anything else only its words stay. ``<!-- picture: NAME, words -->`` becomes a
picture of the site (``pictures``), which the repository does not have.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
_PICTURE = re.compile(r"<!-- picture: ([\w.-]+), (.*?) -->")
_CODE = re.compile(r"(```.*?```)", re.DOTALL)


def gather(into: Path) -> None:
    """Write the pages to ``into``, which is emptied first."""
    shutil.rmtree(into, ignore_errors=True)
    waiting = sorted(DOCS.rglob("*.md"))
    known = set(waiting)
    while waiting:
        page = waiting.pop()
        found: set[Path] = set()
        text = _relinked(page, found)
        target = into / _place(page)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, "utf-8")
        waiting += sorted(found - known)
        known |= found


def _place(page: Path) -> Path:
    """Where a page of the repository is in the site."""
    return page.relative_to(DOCS) if page.is_relative_to(DOCS) else "repository" / page.relative_to(ROOT)


def _relinked(page: Path, found: set[Path]) -> str:
    """The text of ``page`` with links as the site has them; ``found`` gets the pages that it points to."""

    def link(match: re.Match[str]) -> str:
        words, to = match.groups()
        path, _, heading = to.partition("#")
        if "://" in to or not path:
            return match[0]
        target = (page.parent / path).resolve()
        if target.is_dir() and (target / "README.md").is_file():
            target /= "README.md"
        if target.suffix != ".md" or not target.is_file():
            return words
        found.add(target)
        near = os.path.relpath(_place(target), _place(page).parent)
        return f"[{words}]({near}{'#' + heading if heading else ''})"

    folder = os.path.relpath("pictures", _place(page).parent)
    parts = _CODE.split(page.read_text("utf-8"))
    linked = "".join(part if part.startswith("```") else _LINK.sub(link, part) for part in parts)
    return _PICTURE.sub(lambda picture: f"![{picture[2]}]({folder}/{picture[1]})", linked)
