"""Which tests run, and how much of each: ``make test`` and ``make test-all``.

``make test`` proves the product on any machine within minutes. ``make test-all`` runs the rest as well: what is marked

- ``exhaustive``: only there;
- ``sampled``: in both. ``make test`` takes a part that the seed draws (crash points, operations, examples), ``make
  test-all`` (``TESTS=all``) everything.

A module asks ``ALL``, ``sample`` and ``examples``. The seed is drawn, and printed at the end; ``SEED=1234 make test``
draws the same. With ``CI=true`` it follows from the commit, so that the same commit has the same result.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import hypothesis
import pytest

T = TypeVar("T")

ALL: Final = os.environ.get("TESTS") == "all"
"""Whether everything is to be run."""


def _seed() -> int:
    given = os.environ.get("SEED")
    if given:
        return int(given)
    if os.environ.get("CI") == "true":
        asked = ["git", "rev-parse", "HEAD"]
        said = subprocess.run(asked, cwd=Path(__file__).parent, capture_output=True, text=True, check=False).stdout
        return int(said[:8] or "0", 16)
    return random.SystemRandom().randrange(2**31)


SEED: Final = _seed()
os.environ["SEED"] = str(SEED)  # the workers of pytest-xdist are started later, and draw the same


def sample(items: Sequence[T], count: int, of: str) -> list[T]:
    """``count`` of ``items``, in their order, as the seed draws them for ``of``; all of them in ``make test-all``."""
    if ALL or count >= len(items):
        return list(items)
    places = random.Random(f"{SEED} {of}").sample(range(len(items)), count)
    return [items[place] for place in sorted(places)]


def examples(most: int, share: float = 0.2) -> int:
    """How many of ``most`` examples to try: that share of them, and all in ``make test-all``."""
    return most if ALL else max(1, round(share * most))


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Hypothesis draws by the same seed, and judges no time. (With ``CI`` it has a profile of its own: always the same
    examples.)"""
    if os.environ.get("CI") is None and not config.getoption("hypothesis_seed", None):
        config.option.hypothesis_seed = str(SEED)
        hypothesis.settings.register_profile("ours", deadline=None)
        hypothesis.settings.load_profile("ours")


_ROOT = "take root (several users, GPUs that are set): run them in a container"


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """One line of what was skipped and how to have it, one of the seed."""
    if hasattr(config, "workerinput"):
        return
    skipped = Counter(_reason(report) for report in terminalreporter.stats.get("skipped", ()))
    if skipped:
        told = "; ".join(f"{count} {reason}" for reason, count in skipped.most_common())
        terminalreporter.write_line(f"skipped {skipped.total()}: {told}")
    drawn = "everything that was chosen ran whole" if ALL else f"samples were drawn by SEED={SEED}"
    terminalreporter.write_line(drawn)


def _reason(report: pytest.TestReport) -> str:
    """Why it was skipped, in a few words: what takes root is one reason, however a test puts it."""
    longrepr = report.longrepr
    said = re.sub(r"^Skipped: ", "", str(longrepr[2]) if isinstance(longrepr, tuple) else str(longrepr))
    if re.search(r"\broot\b", said):
        return _ROOT
    return re.sub(r"^could not import '([\w.]+)'.*", r"without \1: pip install -e '.[dev]'", said, flags=re.DOTALL)
