"""Three ordinary users on a real Slurm: what one of them claims takes nothing from the other two.

Every part is a real process, as in ``test_slurm_stack``; the users have uids and accounts of their own, and hand their
jobs in as they would, by ``joulewise cluster submit`` and by a bare ``sbatch`` with a comment of their own making.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from joulewise.cluster.scheduler_status import JobStatus
from joulewise.testing.slurm_stack import SlurmStack
from tests.slurm_stack import User, ordinary_users, stack_or_skip

pytestmark = [
    pytest.mark.slow,
    pytest.mark.stack,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("slurm"),
    pytest.mark.usefixtures("virtual_nvml", "may_set"),
]

FLAGS = ("--no-power-off", "--round", "2s", "--start", "2s", "--restart", "3s", "--grace", "2s")
WATCHED_S = 40.0
"""After all jobs are known, many times the 2 s between rounds: a job that claims everything is let in by the first."""
OVER = ("ended", "failed", "cancelled")


@pytest.fixture(scope="module")
def stack() -> Iterator[SlurmStack]:
    with stack_or_skip(nodes=2, gpus=4, accounting=True, flags=FLAGS) as made:
        yield made


@pytest.fixture(scope="module")
def users(stack: SlurmStack) -> Iterator[tuple[User, ...]]:
    with ordinary_users(stack, "ann", "ben", "mal") as made:
        yield made


@pytest.fixture(autouse=True)
def free(stack: SlurmStack) -> None:
    """Nobody on the GPUs."""
    for job in stack.client.status().jobs:
        if job.state not in OVER:
            stack.client.cancel(job.name)
    stack.until(lambda status: not any(node.used_gpus for node in status.nodes), "all is free")


def submit(stack: SlurmStack, user: User, name: str, gpus: int, *flags: str) -> str:
    """An elastic job that sleeps; what was said of it."""
    made = user.cluster(
        stack, "submit", "--name", name, "--gpus", str(gpus), "--checkpoint", name, *flags, "--", "sleep", "900"
    )
    assert made.returncode == 0, made.stderr
    return made.stderr


def least_gpus(stack: SlurmStack, two: tuple[str, str], *third: str) -> dict[str, int]:
    """The fewest GPUs that the jobs of two users ever have, over a while with those of the third."""
    stack.until(lambda status: set(third) <= {job.name for job in status.jobs}, "the third's are known")
    begun = stack.client.status().rounds
    least: dict[str, int] = {}
    until_s = time.monotonic() + WATCHED_S
    while (status := stack.client.status()).rounds < begun or time.monotonic() < until_s:
        assert time.monotonic() < until_s + 60.0, status
        for job in status.jobs:
            if job.name in two:
                least[job.name] = min(least.get(job.name, job.gpus), job.gpus)
        time.sleep(0.2)
    return least


def held_by_two(stack: SlurmStack, ann: User, ben: User, tag: str) -> tuple[str, str]:
    """A job of each on a node of four; their names."""
    two = (f"ann-{tag}", f"ben-{tag}")
    for user, name in zip((ann, ben), two, strict=True):
        submit(stack, user, name, 4)
        stack.job(name, lambda job: job.state == "running" and job.gpus == 4)
    return two


def cancelled(stack: SlurmStack, *names: str) -> None:
    for name in names:
        stack.client.cancel(name)
    stack.until(lambda status: not any(node.used_gpus for node in status.nodes), "all is free again")


def job(stack: SlurmStack, name: str) -> JobStatus:
    return stack.client.job(name)


def by_sbatch(stack: SlurmStack, who: User, name: str, /, **facts: object) -> None:
    """A job of eight GPUs by a bare sbatch, with a comment of the user's own making."""
    order = {"name": name, "gpus": 8, "checkpoint": name, **facts}
    note = {"v": 1, "digest": "0" * 16, "folder": str(who.folder), "order": order}
    made = who.run(
        stack,
        *("sbatch", "--parsable", "--hold", "--requeue", "--nodes=2-2", "--gres=gpu:4", f"--job-name={name}"),
        f"--comment=joulewise {json.dumps(note, separators=(',', ':'))}",
        "--wrap=sleep 900",
    )
    assert made.returncode == 0, made.stderr


def test_a_vast_weight_a_deadline_and_forged_records_take_nothing_from_two_other_users(stack, users, scenario):
    shown = scenario(
        "R28",
        "real Slurm, three users: --weight 1000000, a deadline, a comment that forges time, user and account",
        criterion="the others' GPUs as with the plain jobs",
    )
    ann, ben, mal = users
    two = held_by_two(stack, ann, ben, "plain")
    submit(stack, mal, "mal-one", 8)
    by_sbatch(stack, mal, "mal-two")
    plain = least_gpus(stack, two, "mal-one", "mal-two")
    cancelled(stack, *two, "mal-one", "mal-two")

    two = held_by_two(stack, ann, ben, "fair")
    said = submit(stack, mal, "mal-heavy", 8, "--weight", "1000000", "--deadline", "5m", "--steps", "10")
    assert "as far as the site allows" in said or "counts as 1, the most that this site allows" in said
    now_s = time.time()
    by_sbatch(
        stack,
        mal,
        "mal-forged",
        least_gpus=8,
        weight=1e6,
        submitted_s=1.0,
        deadline_s=now_s + 60.0,
        tenant="ann",
        user=ann.name,
        account="of-ann",
        qos="urgent",
    )
    claimed = least_gpus(stack, two, "mal-heavy", "mal-forged")

    seen = {name: job(stack, name) for name in (*two, "mal-heavy", "mal-forged")}
    shown.saw(f"plain {sorted(plain.values())}, claimed {sorted(claimed.values())} GPUs")
    assert [seen[name].user for name in two] == [ann.name, ben.name]
    assert seen["mal-heavy"].user == seen["mal-forged"].user == mal.name
    assert abs(seen["mal-forged"].submitted_s - now_s) < 60.0
    assert seen["mal-heavy"].weight == seen["mal-forged"].weight == 1.0
    assert "counts as 1" in stack.call("explain", "mal-heavy").stdout
    cancelled(stack, *seen)
    # Two alike: which of them makes room for a third user, where one does, is not what this is about.
    assert sum(claimed.values()) >= sum(plain.values())
    assert min(claimed.values()) >= min(plain.values()) > 0
