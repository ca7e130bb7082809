"""``joulewise plan profile -- COMMAND``: measure the stages of a pipeline as it trains, for ``joulewise plan solve``.

The command is run as it is, torchrun and all; every Python process in it follows the schedules of
``torch.distributed.pipelining`` that it steps (``frameworks/pipelining``), at a few clocks for a few iterations. Its
output, signals and exit code are its own. Nothing is set before and after, and no plan is played.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from joulewise.cli import FAILED, child, complain, outputs, say
from joulewise.cli.child import Child, signals_held
from joulewise.core import at_import
from joulewise.core.errors import BadSpec
from joulewise.core.parsing import json_value
from joulewise.frameworks.pipelining_files import FACTS_FILE, PROFILE, PROFILE_FILE, SCHEDULE_FILE

_LOOK_S = 1.0
_MODULE = "torch.distributed.pipelining.schedules"


def profile(
    ctx: typer.Context,
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="The training and its arguments, after --.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE.json", help="Write the profile here.")] = Path(
        "profile.json"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="What was measured besides, as JSON.")] = False,
) -> None:
    """Measure what each stage of a pipeline takes and draws, at a few clocks.

    The training must step a schedule of torch.distributed.pipelining; some 20
    iterations are enough. It needs the right to set clocks, as 'joulewise run
    --tune' does; they are as before at the end. The command runs to its end.

      joulewise plan profile -- torchrun --nproc-per-node 4 train.py --steps 30
      joulewise plan solve profile.json --schedule profile.schedule.csv \\
          --blocking-w 84

    The second line, with its numbers, is printed at the end.
    """
    if out.suffix.lower() != ".json":
        raise BadSpec(f"--out {out} is to be JSON, and would be read as CSV; name it {out.name}.json")
    schedule = out.with_suffix(".schedule.csv")
    outputs.refuse_words_of(command, {"--out": out, "the schedule beside --out,": schedule})
    outputs.refuse_unwritable("--out", out)
    outputs.refuse_unwritable("the schedule beside --out,", schedule)
    with ExitStack() as stack:
        mask = stack.enter_context(signals_held())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="joulewise-profile-")))
        prepared = at_import.environment(os.environ, _MODULE, "joulewise.frameworks.pipelining:inject")
        code = _run(command, {**prepared, PROFILE: str(folder)}, mask)
        facts = _facts(folder, code)
        if "blocking_w" in facts:
            shutil.copyfile(folder / PROFILE_FILE, out)
            shutil.copyfile(folder / SCHEDULE_FILE, schedule)
    if "blocking_w" not in facts:
        complain(f"nothing was measured: {facts['why']}")
        raise typer.Exit(code or FAILED)
    solve = _solve(out, schedule, facts)
    if as_json:
        print(json.dumps({**facts, "profile": f"{out}", "schedule": f"{schedule}", "solve": solve}))
    else:
        print(solve)
        say(ctx, f"measured; {out} and {schedule} are written, and the line above makes a plan of them")
    raise typer.Exit(code)


def _run(command: list[str], environ: dict[str, str], mask: set[int]) -> int:
    try:
        running = Child(command, environ, mask)
    except OSError as error:
        complain(child.why_not_started(command[0], error))
        raise typer.Exit(child.exit_code_of(error)) from None
    while (code := running.wait(_LOOK_S)) is None:
        pass
    return code


def _facts(folder: Path, code: int) -> dict[str, Any]:
    """What the job has left: at least ``why``, which is its own failure where it ended with another ``code`` than 0."""
    try:
        found: dict[str, Any] = json_value((folder / FACTS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        if code != 0:
            return {"why": f"the command ended with exit code {code} before it was measured"}
        return {
            "why": "no process stepped a schedule of torch.distributed.pipelining to the end of measuring; "
            "it takes some 20 iterations, and a Python that reads PYTHONPATH"
        }
    return found


def _solve(out: Path, schedule: Path, facts: dict[str, Any]) -> str:
    """The command that makes a plan of it."""
    words = ["joulewise", "plan", "solve", f"{out}", "--schedule", f"{schedule}"]
    words += ["--blocking-w", f"{facts['blocking_w']:.2f}"]
    if facts["transfer_s"] > 0:
        words += ["--transfer", f"{1e3 * facts['transfer_s']:.3f}ms"]
    for flag, name in (("--model", "model"), ("--gpu-name", "gpu"), ("--driver", "driver")):
        if facts[name]:
            words += [flag, facts[name]]
    return shlex.join([*words, "--out", f"{out.with_suffix('.plan.json')}"])
