"""Rules of the house that no linter knows."""

import ast
import re
from pathlib import Path

SOURCES = Path(__file__).parent.parent / "src" / "joulewise"
VENDOR_UNITS = re.compile(r"(?i)_m[wj]\b|\bm[wj]_|milliwatt|millijoule|\bmW\b|\bmJ\b")


def test_milliwatts_and_millijoules_occur_only_at_the_edge_that_talks_to_vendors():
    strays = [
        f"{path.relative_to(SOURCES)}:{number}: {line.strip()}"
        for path in sorted(SOURCES.rglob("*.py"))
        if path.parent.name not in ("device", "vnvml", "native") and path.name != "units.py"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if VENDOR_UNITS.search(line)
    ]
    assert strays == []


def test_every_module_says_what_it_is():
    silent = [path for path in SOURCES.rglob("*.py") if not ast.get_docstring(ast.parse(path.read_text("utf-8")))]
    assert silent == []
