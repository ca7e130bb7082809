"""``--report`` and ``--plot`` of the verbs that draw: what they are, and what is refused before anything is done."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from joulewise.cli import outputs

Report = Annotated[Path | None, typer.Option(metavar="FILE.html", help="Write all of it as a page.")]
Plot = Annotated[Path | None, typer.Option(metavar="FILE", help="Draw it: .png, .svg or .pdf.")]


def check_drawings(read: Mapping[str, Path], report: Path | None, plot: Path | None) -> None:
    """Raise BadSpec or MissingPart where a drawing could not be written, or would overwrite what is ``read``."""
    from joulewise.report.plot import check

    outputs.refuse_one_for_two({**read, "--report": report, "--plot": plot})
    if report is not None:
        outputs.refuse_no_html("--report", report)
        outputs.refuse_unwritable("--report", report)
    if plot is not None:
        check(plot)
        outputs.refuse_unwritable("--plot", plot)
