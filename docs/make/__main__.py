"""``python -m docs.make``: the documentation site into out/site, its pages gathered in out/docs.

Needs the extra ``docs``. Nothing is fetched: the theme asks for no fonts and no scripts from elsewhere.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from docs.make import api, commands, pages, pictures


def make(folder: Path) -> Path:
    """Make the site anew in ``folder`` and return where it is. CalledProcessError if a part of it fails."""
    source, site = folder / "docs", folder / "site"
    pages.gather(source)
    (source / "commands.md").write_text(commands.page(), "utf-8")
    (source / "api.md").write_text(api.page(), "utf-8")
    pictures.draw(source / "pictures")
    shutil.rmtree(site, ignore_errors=True)
    shutil.copy(pages.ROOT / "mkdocs.yml", folder)
    subprocess.run([sys.executable, "-m", "zensical", "build", "--strict"], cwd=folder, check=True)
    return site


if __name__ == "__main__":
    print(f"the site is {make(pages.ROOT / 'out') / 'index.html'}")
