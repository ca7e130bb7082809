"""Small traces, and the cluster verbs called as a user calls them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from joulewise.cli import main

SMALL = ("--gpu", "sim:a100-sxm*16")
ONE_NODE = ("--gpu", "sim:a100-sxm*8", "--size-error", "0")


def written(path: Path, jobs: int, *, seed: int = 1, mean_gap_s: float = 600.0) -> Path:
    """A trace of our own columns, made up by seed."""
    rng = random.Random(seed)
    at_s, rows = 1000.0, ["name,submitted_s,gpus,duration_s,model,deadline_s,tenant"]
    for number in range(jobs):
        at_s += rng.expovariate(1 / mean_gap_s)
        took_s = rng.lognormvariate(7.5, 0.8)
        model = rng.choice(["", "bert", "resnet50", "new-network"])
        due = f"{at_s + took_s * rng.uniform(1.0, 3.0):.0f}" if number % 2 else ""
        rows.append(f"job-{number},{at_s:.0f},{rng.choice((1, 1, 2, 4, 8))},{took_s:.0f},{model},{due},{number % 3}")
    path.write_text("\n".join(rows) + "\n")
    return path


def crowded(path: Path) -> Path:
    """A long job and many short ones that keep coming, each of which wants all of a node."""
    short = [f"short-{number},{60 + 900 * number},8,1800,bert" for number in range(20)]
    path.write_text("\n".join(("name,submitted_s,gpus,duration_s,model", "long,0,8,9000,bert", *short)) + "\n")
    return path


def called(*args: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([*map(str, ("cluster", *args))])
    return int(ended.value.code or 0)


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    """What was said, if it was one line on stderr and nothing else."""
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    return shown.err
