"""HiGHS, the solver of linear and integer programs, where it is installed (extra ``plan``)."""

from __future__ import annotations

from typing import Any

from joulewise.core.errors import MissingPart


def highs(what: str) -> Any:
    """A fresh, silent solver. MissingPart names ``what`` wanted it, and the way to get it."""
    try:
        import highspy  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise MissingPart(f"{what} needs HiGHS: pip install 'joulewise[plan]'") from error
    solver: Any = highspy.Highs()  # type: ignore[no-untyped-call,unused-ignore]
    solver.setOptionValue("output_flag", False)
    return solver
