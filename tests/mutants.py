"""Would a test notice? Small faults put into the sources one at a time, each against the tests that run its line.

    make coverage
    python -m tests.mutants --count 200 --seed 2611 --part 1/2

A mutant is one change of one expression or statement: another comparison or operator, a condition turned round, a
constant off by one, a call or an assignment left out. Sites are drawn by the seed from all of ``PACKAGES``. Which tests
run a line is in the data of ``make coverage``; those of the module's own test file come first, then the same folder's,
then others. A mutant is *killed* when one of them fails, and *survives* when none does within ``--seconds``.

The sources of this checkout are changed in place and put back, so it must have no uncommitted change there; for two at
once run two parts in two clones. ``--json FILE`` gets a row for each mutant; rows that are there already are kept, so a
run that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "joulewise"
PACKAGES = ("tune", "device", "cluster", "store", "plan", "monitor")
MOST_TESTS = 400
"""Of those that run a line: a line that thousands run is noticed by the first of them, or by none."""

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
}


@dataclass(frozen=True)
class Mutant:
    """One change."""

    path: str
    """Of the module, below the root."""
    line: int
    column: int
    kind: str
    before: str
    after: str
    start: int
    """Where ``before`` begins in the file, in characters."""

    def applied(self, source: str) -> str:
        """The module with this change."""
        assert source[self.start : self.start + len(self.before)] == self.before
        return source[: self.start] + self.after + source[self.start + len(self.before) :]


def mutants(path: Path) -> Iterator[Mutant]:
    """All changes of one module that this program knows."""
    source = path.read_text("utf-8")
    tree = ast.parse(source)
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    lines = source.splitlines(keepends=True)

    def place(line: int, column: int) -> int:
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    said = _texts(tree)
    for node in ast.walk(tree):
        for kind, changed in _changes(node, said):
            assert isinstance(node, ast.expr | ast.stmt)
            start = place(node.lineno, node.col_offset)
            end = place(node.end_lineno or 0, node.end_col_offset or 0)
            before = source[start:end]
            after = "pass" if changed is None else f"({ast.unparse(changed)})"
            yield Mutant(str(path.relative_to(ROOT)), node.lineno, node.col_offset, kind, before, after, start)


def _texts(tree: ast.AST) -> set[int]:
    """Nodes in which a change would be no fault: documentation, types, and what only formats messages."""
    found: set[int] = set()
    for node in ast.walk(tree):
        parts: list[ast.AST | None] = []
        if isinstance(node, ast.AnnAssign):
            parts = [node.annotation]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            parts = [node.returns, *node.decorator_list]
        elif isinstance(node, ast.arg):
            parts = [node.annotation]
        elif isinstance(node, ast.JoinedStr | ast.Raise | ast.Assert) or _says(node):
            parts = [node]
        for part in parts:
            if part is not None:
                found |= {id(each) for each in ast.walk(part)}
    return found


def _says(node: ast.AST) -> bool:
    """Whether it is documentation, or for type checkers alone."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def _changes(node: ast.AST, said: set[int]) -> Iterator[tuple[str, ast.AST | None]]:
    """How a node may be changed: the kind and what stands there instead; None: nothing."""
    if id(node) in said:
        return
    changed = copy.copy(node)
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARED:
        assert isinstance(changed, ast.Compare)
        changed.ops = [_COMPARED[type(node.ops[0])](), *node.ops[1:]]
        yield "comparison", changed
    elif (
        isinstance(node, ast.BinOp)
        and type(node.op) in _COMPUTED
        and not isinstance(node.left, ast.Constant | ast.Name)
    ):
        assert isinstance(changed, ast.BinOp)
        changed.op = _COMPUTED[type(node.op)]()
        yield "operator", changed
    elif isinstance(node, ast.BoolOp):
        assert isinstance(changed, ast.BoolOp)
        changed.op = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
        yield "and, or", changed
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "not", node.operand
    elif isinstance(node, ast.IfExp):
        assert isinstance(changed, ast.IfExp)
        changed.test = ast.UnaryOp(ast.Not(), node.test)
        yield "condition", changed
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "constant", ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield "constant", ast.Constant(node.value + 1)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield "call left out", None
    elif isinstance(node, ast.AugAssign):
        yield "assignment left out", None


def drawn(count: int, seed: int) -> list[Mutant]:
    """``count`` of all mutants of all packages."""
    paths = [path for name in PACKAGES for path in sorted((SOURCES / name).rglob("*.py"))]
    everything = [each for path in paths for each in mutants(path)]
    return random.Random(seed).sample(everything, count)


class Covered:
    """Which tests run a line, by the data of coverage.py."""

    def __init__(self, data: Path) -> None:
        self._base = sqlite3.connect(f"file:{data}?mode=ro", uri=True)
        self._base.execute("PRAGMA query_only = 1")
        self._files = {path: number for number, path in self._base.execute("SELECT id, path FROM file")}
        self._arcs = bool(self._base.execute("SELECT 1 FROM arc LIMIT 1").fetchall())

    def tests(self, mutant: Mutant) -> list[str]:
        """Names of tests, nearest first; empty where none runs that line."""
        file = next((number for path, number in self._files.items() if path.endswith(mutant.path)), None)
        if file is None:
            return []
        if self._arcs:
            asked = (
                "SELECT DISTINCT context.context FROM arc JOIN context ON context.id = arc.context_id WHERE file_id = ?"
            )
            rows = self._base.execute(f"{asked} AND abs(tono) = ?", (file, mutant.line)).fetchall()
        else:
            rows = []
            asked = "SELECT context.context, numbits FROM line_bits JOIN context ON context.id = line_bits.context_id"
            for name, bits in self._base.execute(f"{asked} WHERE file_id = ?", (file,)):
                byte, bit = divmod(mutant.line, 8)
                if byte < len(bits) and bits[byte] >> bit & 1:
                    rows.append((name,))
        module = Path(mutant.path)
        own, folder = f"test_{module.stem}", module.parent.name

        def distance(test: str) -> tuple[int, str]:
            where = Path(test.partition("::")[0])
            near = (
                0 if where.stem == own else 1 if where.stem.startswith(own) else 2 if where.parent.name == folder else 3
            )
            return near, test

        return sorted({name for (name,) in rows if name}, key=distance)[:MOST_TESTS]


def tried(mutant: Mutant, tests: Sequence[str], seconds: float) -> tuple[str, str]:
    """What became of it, and the first test that failed."""
    if not tests:
        return "survived", "no test runs this line"
    path = ROOT / mutant.path
    source = path.read_text("utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header", "--tb=no", *tests]
    path.write_text(mutant.applied(source), "utf-8")
    try:
        with subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        ) as running:
            try:
                said, _ = running.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                os.killpg(running.pid, signal.SIGKILL)
                said, _ = running.communicate()
                return "survived", f"no failure within {seconds:g} s"
    finally:
        path.write_text(source, "utf-8")
    if running.returncode == 0:
        return "survived", f"{len(tests)} tests passed"
    if running.returncode == 5 or "no tests ran" in said:
        return "survived", "its tests could not be run"
    failed = next((line for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))), said.strip()[-200:])
    return "killed", failed[:200]


def main() -> None:
    """The program: see above."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=2611)
    parser.add_argument("--part", default="1/1", help="which part of them, e.g. 1/2")
    parser.add_argument("--seconds", type=float, default=60.0, help="for the tests of one mutant")
    parser.add_argument("--data", type=Path, default=ROOT / "build" / "coverage" / ".coverage")
    parser.add_argument("--json", type=Path, help="a row for each mutant, one a line")
    options = parser.parse_args()
    part, parts = map(int, options.part.split("/"))
    changed = ["git", "status", "--porcelain", "--", str(SOURCES)]
    if subprocess.run(changed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip():
        parser.error("src/joulewise has uncommitted changes; commit or stash them, since files are changed in place")
    covered = Covered(options.data)
    known = {}
    if options.json is not None and options.json.exists():
        for line in options.json.read_text("utf-8").splitlines():
            row = json.loads(line)
            known[row["number"]] = row
    outcomes = []
    for number, mutant in enumerate(drawn(options.count, options.seed)):
        if number % parts != part - 1:
            continue
        row = known.get(number)
        if row is None:
            began_s = time.monotonic()
            tests = covered.tests(mutant)
            outcome, why = tried(mutant, tests, options.seconds)
            row = {"number": number, **asdict(mutant), "outcome": outcome, "why": why}
            row["seconds"] = round(time.monotonic() - began_s, 1)
            if options.json is not None:
                with options.json.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
        outcomes.append(row["outcome"])
        print(f"{number:3d} {row['outcome']:8s} {row['path']}:{row['line']} {row['kind']}: {row['why']}", flush=True)
    killed = outcomes.count("killed")
    print(f"{killed} of {len(outcomes)} killed ({100 * killed / max(1, len(outcomes)):.1f} %)")


if __name__ == "__main__":
    main()
