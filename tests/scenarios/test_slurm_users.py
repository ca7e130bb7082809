"""Three ordinary users on a real Slurm: what one of them claims takes nothing from the other two, and nobody commands
what is not theirs.

Every part is a real process, as in ``test_slurm_stack``; the users have uids and accounts of their own, and hand their
jobs in as they would, by ``joulewise cluster submit`` and by a bare ``sbatch`` with a comment of their own making. They
ask the scheduler through its Unix socket, as everybody on the head node does.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from joulewise.cluster.declared import Report
from joulewise.cluster.scheduler_status import JobStatus
from joulewise.core.event import Aimed, Event, Limited, Ordered, Turned
from joulewise.core.plain import plain
from joulewise.store import open_store
from joulewise.testing.slurm_stack import SlurmStack
from tests.scenarios.someone import asking
from tests.slurm_stack import SUICIDAL, User, ordinary_users, stack_or_skip, struck, suicidal

pytestmark = [
    pytest.mark.slow,
    pytest.mark.stack,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("slurm"),
    pytest.mark.usefixtures("virtual_nvml", "may_set"),
]

FLAGS = ("--no-power-off", "--round", "1s", "--start", "2s", "--restart", "3s", "--grace", "2s")
WATCHED_S = 20.0
"""After all jobs are known, many times the 1 s between rounds: a job that claims everything is let in by the first."""
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
    least: dict[str, int] = {}
    until_s = time.monotonic() + WATCHED_S
    while time.monotonic() < until_s:
        status = stack.client.status()
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


def sbatch(who: User, name: str, /, **facts: object) -> tuple[str, ...]:
    """The words that hand in a job of eight GPUs, with a comment of the user's own making."""
    order = {"name": name, "gpus": 8, "checkpoint": name, **facts}
    note = {"v": 1, "digest": "0" * 16, "folder": str(who.folder), "order": order}
    return (
        *("sbatch", "--parsable", "--hold", "--requeue", "--nodes=2-2", "--gres=gpu:4", f"--job-name={name}"),
        f"--comment=joulewise {json.dumps(note, separators=(',', ':'))}",
        "--wrap=sleep 900",
    )


def by_sbatch(stack: SlurmStack, who: User, name: str, /, **facts: object) -> str:
    """Such a job, handed in; Slurm's number of it."""
    made = who.run(stack, *sbatch(who, name, **facts))
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


def journal(stack: SlurmStack) -> list[Event]:
    """All that the scheduler has written down."""
    with closing(open_store(str(stack.home / "joulewise.db"))) as store:
        (stream,) = store.streams("cluster/")
        return [event for _, event in store.journal(stream).read()]


def in_squeue(stack: SlurmStack, number: str) -> str:
    """Slurm's word for the state of a job that has not ended; empty for one that has."""
    return (
        stack.site.commands.run("squeue", "--noheader", "--format=%i %T").partition(f"{number} ")[2].partition("\n")[0]
    )


def in_sacct(stack: SlurmStack, number: str, column: str) -> str:
    said = stack.site.commands.run("sacct", "-X", "-n", "-P", "-j", number, "-o", column)
    return said.strip()


def is_over(stack: SlurmStack, name: str) -> JobStatus:
    return stack.job(name, lambda job: job.state in OVER)


def is_refused(said: subprocess.CompletedProcess[str], why: str) -> None:
    """A command has ended with 2 and one line that says why."""
    assert (said.returncode, len(said.stderr.splitlines())) == (2, 1), said.stderr
    assert why in said.stderr


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


def test_no_ordinary_user_commands_the_cluster_through_the_socket_or_past_it(stack, users, scenario):
    shown = scenario(
        "R27",
        "real Slurm, three users: cap, budget, a node's report, through the socket and over TCP",
        criterion="403 and 401, all as it was",
    )
    stack.client.cap(8000.0)
    before = len(journal(stack))
    at = "/api/cluster"
    forged = plain(Report("n1", time.time(), 1, 1, 1.0, 1.0, 1.0))
    asked = [
        ("PUT", f"{at}/cap", {"power_w": 5000.0}, {}),
        ("PUT", f"{at}/budget", {"energy_j": 1e12, "period_s": 3600.0}, {}),
        ("POST", f"{at}/nodes/n1", forged, {}),
    ]
    for user in users:
        for words in (("cap", "5kW"), ("cap", "none"), ("budget", "500kWh/day", "--server", stack.server)):
            is_refused(user.cluster(stack, *words), f"you are uid {user.uid}")
        assert [status for status, _ in asking(user.uid, stack.server, asked)] == [403] * len(asked)
        assert [status for status, _ in asking(user.uid, stack.url, asked)] == [401] * len(asked)
        seen = user.cluster(stack, "status")  # they may look
        assert (seen.returncode, "8.00 kW" in seen.stdout) == (0, True), seen
    status = stack.client.status()
    assert (status.cap_w, status.budget_j) == (8000.0, None)
    assert not [event for event in journal(stack)[before:] if isinstance(event, Limited)]
    shown.saw(f"{3 * (3 + 2 * len(asked))} attempts refused, the cap 8.00 kW")
    stack.client.cap(None)


def test_a_job_is_cancelled_by_its_user_or_by_root_and_the_records_say_by_whom(stack, users, scenario):
    shown = scenario(
        "R27",
        "real Slurm, three users: cancel another's job, one's own, root anybody's; forged comments; scancel",
        criterion="by uid, named in journal and sacct",
    )
    ann, ben, mal = users
    one = ("--least", "1", "--most", "1")  # nobody is resized meanwhile
    submit(stack, ben, "bens", 1, *one)
    submit(stack, mal, "mals", 1, *one)
    by_sbatch(stack, mal, "forged", gpus=2, least_gpus=2, most_gpus=2, tenant=ann.name, user=ann.name)
    number = {name: stack.job(name, lambda job: job.state == "running").id for name in ("bens", "mals", "forged")}
    # Not ann's, whatever she or mal says; Slurm does not let mal write the administrator's comment either.
    written = mal.run(stack, "scontrol", "update", f"JobId={number['forged']}", "AdminComment=joulewise: by root")
    assert written.returncode != 0
    hers = next(word for word in sbatch(ann, "forged", tenant=ann.name, user=ann.name) if "comment" in word)
    said = mal.run(stack, "scontrol", "update", f"JobId={number['forged']}", hers.replace("--comment", "Comment"))
    assert said.returncode == 0, said.stderr
    told_s = time.time()
    stack.until(lambda status: status.time_s > told_s, "it has been looked at since")
    for name in number:
        is_refused(ann.cluster(stack, "cancel", name), f"job '{name}' is not yours")
        assert in_squeue(stack, number[name]) == "RUNNING"
    # Each their own, and root anybody's.
    assert ben.cluster(stack, "cancel", "bens").returncode == 0
    assert mal.cluster(stack, "cancel", "forged").returncode == 0
    assert stack.call("cancel", "mals").returncode == 0
    assert {is_over(stack, name).state for name in number} == {"cancelled"}
    # Past us: Slurm knows who it was, we do not. The second has the name of one that root has cancelled.
    submit(stack, ben, "past", 1, *one)
    number["past"] = stack.job("past", lambda job: job.state == "running").id
    assert ann.run(stack, "scancel", number["past"]).returncode != 0
    assert ben.run(stack, "scancel", number["past"]).returncode == 0
    is_over(stack, "past")
    at_once = f"number=$({shlex.join(sbatch(ben, 'mals'))}) && scancel $number && echo $number"
    again = ben.run(stack, "sh", "-c", at_once)
    assert again.returncode == 0, again.stderr
    stack.until(lambda status: any(job.id == again.stdout.strip() and job.state in OVER for job in status.jobs))
    number["mals again"] = again.stdout.strip()

    events = journal(stack)
    ordered = {event.facts["id"]: event.facts["by"] for event in events if isinstance(event, Ordered)}
    uid = {name: ordered[id_]["uid"] for name, id_ in number.items()}
    assert uid == {"bens": ben.uid, "mals": mal.uid, "forged": mal.uid, "past": ben.uid, "mals again": ben.uid}
    stops = {event.name: event for event in events if isinstance(event, Aimed) and event.what == "stop"}
    ends = [event for event in events if isinstance(event, Turned) and event.what == "cancelled"]
    expected = {
        "bens": ("cancelled by its user", {"uid": ben.uid, "user": ben.name}),
        "forged": ("cancelled by its user", {"uid": mal.uid, "user": mal.name}),
        "mals": ("cancelled by root (uid 0)", {"uid": 0, "user": "root"}),
    }
    assert {name: (stops[name].reason, stops[name].facts["by"]) for name in expected} == expected
    assert "past" not in stops
    for name, (reason, _) in expected.items():
        assert next(event for event in ends if event.name == name).facts["why"] == reason
        assert in_sacct(stack, number[name], "admincomment").endswith(reason)
    own = {"", f"CANCELLED by {ben.uid}"}
    assert next(event for event in ends if event.name == "past").facts["why"] in own
    assert [event for event in ends if event.name == "mals"][-1].facts["why"] in own
    for name in ("past", "mals again"):
        assert in_sacct(stack, number[name], "state") == f"CANCELLED by {ben.uid}"
        assert "cancelled" not in in_sacct(stack, number[name], "admincomment")
    shown.saw("3 refused, 3 of theirs ended under the right name; 2 by scancel: nobody named")


def test_a_scheduler_killed_right_after_a_cancellation_leaves_the_next_one_to_say_whose_word_it_was(
    stack, users, tmp_path
):
    _, ben, _ = users
    submit(stack, ben, "late", 1, "--least", "1", "--most", "1")
    number = stack.job("late", lambda job: job.state == "running").id
    deaths = tmp_path / "struck"
    done = ("take", "start", "resize", "preempt", "power", "account", "declare")
    others = [f"{when} {what}" for what in (*done, "Led", "Ordered", "Aimed", "Turned") for when in ("before", "after")]
    deaths.write_text("".join(f"{step}\n" for step in (*others, "before stop")))
    stack.start_scheduler(command=SUICIDAL, environ=suicidal(deaths, once=True))
    assert ben.cluster(stack, "cancel", "late").returncode == 0
    deadline_s = time.monotonic() + 60.0
    while stack.scheduler_alive or in_squeue(stack, number):
        assert time.monotonic() < deadline_s, struck(deaths)
        time.sleep(0.1)
    assert struck(deaths)[-1] == "after stop"
    stack.start_scheduler()
    assert is_over(stack, "late").state == "cancelled"
    (end,) = [
        event
        for event in journal(stack)
        if isinstance(event, Turned) and (event.name, event.what) == ("late", "cancelled")
    ]
    assert end.facts["why"] == "cancelled by its user"
