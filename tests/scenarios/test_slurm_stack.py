"""The whole stack on a real Slurm of virtual nodes: resized, preempted, capped, and every part of it killed.

Every process is a real one: slurmctld, a slurmd a node, daemons, agents, ``joulewise cluster up``, and the jobs, which
train a small network to a result that is the same to the last bit however often they were stopped. What was drawn and
what is set is read from the simulators, not from what our own parts say.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from joulewise.cluster.scheduler_status import NodeStatus, Status
from joulewise.testing.slurm_stack import SlurmStack
from tests.slurm_stack import SUICIDAL, Drawn, ended_once, results, stack_or_skip, struck, suicidal, train

pytestmark = [
    pytest.mark.slow,
    pytest.mark.stack,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("slurm"),
    pytest.mark.usefixtures("virtual_nvml", "may_set"),
]

FLAGS = ("--no-power-off", "--round", "2s", "--start", "2s", "--restart", "3s", "--grace", "5s")
KEPT = 1.02
"""Of a cap: what sensors and a mean over a second may be off by."""
BUSY_W = 5000.0
"""Above what 32 GPUs draw with nothing to do, and well below what they draw at work."""


@pytest.fixture(scope="module")
def stack() -> Iterator[SlurmStack]:
    with stack_or_skip(accounting=True, flags=FLAGS) as made:
        yield made


@pytest.fixture(autouse=True)
def free(stack: SlurmStack) -> None:
    """Whatever the test before left: no cap, and nobody on the GPUs."""
    stack.client.cap(None)
    for job in stack.client.status().jobs:
        if job.state not in ("ended", "failed", "cancelled"):
            stack.client.cancel(job.name)
    stack.until(lambda status: status.cap_w is None and not any(node.used_gpus for node in status.nodes), "all is free")


def over(status: Status, *names: str) -> bool:
    by_name = {job.name: job for job in status.jobs}
    return all(name in by_name and by_name[name].state in ("ended", "failed", "cancelled") for name in names)


def accounted_j(stack: SlurmStack) -> dict[str, float]:
    """Job → joules, as ``sacct`` shows them."""
    said = stack.site.commands.run("sacct", "-X", "-n", "-P", "-o", "jobname,admincomment")
    found = (re.fullmatch(r"(\S+)\|joulewise energy_j=(\S+).*", line) for line in said.splitlines())
    return {each[1]: float(each[2]) for each in found if each is not None}


def test_jobs_are_resized_and_preempted_under_a_cap_and_end_right_with_every_joule_accounted(stack):
    """Three elastic jobs and a rigid one fill all nodes; a cap by clocks, one by stopping, none any more."""
    before = {node: stack.hardware(node) for node in stack.site.nodes}
    standing_j = stack.unaccounted_j()
    began = stack.client.status()
    jobs = {"rigid": 400, "one": 300, "two": 300, "three": 300}
    with Drawn(stack) as drawn:
        # All at once: on a busy machine each submission takes as long as the first job has to run.
        with ThreadPoolExecutor() as pool:
            handed = [pool.submit(train, stack, "rigid", 8, jobs["rigid"], rigid=True)]
            for name in ("one", "two", "three"):
                elastic = ("--least", "1", "--most", "8")
                handed.append(pool.submit(train, stack, name, 8, jobs[name], flags=elastic))
        assert all(each.result() for each in handed)
        stack.until(lambda status: all(job.state == "running" and job.done > 8 for job in status.jobs), "all run")
        full_w = drawn.busy_w(BUSY_W)
        # A fifth less: clocks alone.
        cap_w = 0.8 * full_w
        stack.client.cap(cap_w)
        told_s = time.monotonic()
        time.sleep(5.0)
        assert drawn.highest_w(told_s + 2.0, time.monotonic()) <= KEPT * cap_w
        assert all(job.starts == 1 and job.gpus == 8 for job in stack.client.status().jobs)
        # Less than these jobs draw at the lowest clocks: the rigid one stays, others shrink or wait.
        stack.client.cap(4500.0)
        told_s = time.monotonic()
        rigid = stack.job("rigid", lambda job: "sm_mhz" in job.setting)
        assert (rigid.gpus, rigid.starts) == (8, 1)
        stack.until(lambda status: any(job.state == "waiting" for job in status.jobs), "one is preempted")
        time.sleep(max(0.0, told_s + 6.0 - time.monotonic()))
        assert drawn.highest_w(told_s + 2.0, time.monotonic()) <= KEPT * 4500.0
        assert "MHz" in stack.call("explain", "rigid").stdout
        # Below what it draws with nothing to do: refused, and the old one holds.
        refused = stack.call("cap", "1kW")
        assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1)
        assert stack.client.status().cap_w == 4500.0
        stack.client.cap(None)
        stack.until(lambda status: over(status, *jobs) or _all_claimed(stack, status), "all run again, and are claimed")
        stack.until(lambda status: over(status, *jobs), "all are over")
        ended_once(stack, jobs)
        assert stack.client.job("rigid").starts == 1
        assert max(each["starts"] for name in jobs for each in results(stack, name)) > 1
        deadline_s = time.monotonic() + 30.0
        while set(accounted_j(stack)) < set(jobs) or {node: stack.hardware(node) for node in before} != before:
            assert time.monotonic() < deadline_s, (accounted_j(stack), before)
            time.sleep(0.2)
        # Every joule of the jobs and of nobody, from when the test began; then what the cluster's own meter says.
        time.sleep(1.0)
        true_j = stack.gpu_j() - drawn.begun[1] + len(before) * stack.host_w * (time.monotonic() - drawn.begun[0])
        metered_j = stack.client.status().energy_j - began.energy_j
        missing_j = sum(accounted_j(stack)[name] for name in jobs) + stack.unaccounted_j() - standing_j
        assert abs(missing_j) <= 0.01 * true_j
        assert metered_j == pytest.approx(true_j, rel=0.02)  # at moments, so a second at either end may be off


def test_a_scheduler_killed_at_every_step_of_its_round_loses_no_job_and_doubles_none(stack, tmp_path):
    jobs = {"k1": 260, "k2": 160, "k3": 120}
    before = {node: stack.hardware(node) for node in stack.site.nodes}
    stack.kill_scheduler()
    deaths = tmp_path / "struck"
    for name, steps in jobs.items():
        train(stack, name, 8, steps, flags=("--least", "1", "--most", "8"))
    capped = False
    stack.start_scheduler(command=SUICIDAL, environ=suicidal(deaths))
    deadline_s = time.monotonic() + 600.0
    while True:
        assert stack.scheduler_alive, struck(deaths)
        assert time.monotonic() < deadline_s, struck(deaths)
        status = stack.status()
        if status is not None and not capped and sum(job.state == "running" for job in status.jobs) == len(jobs):
            assert stack.call("cap", "3.6kW").returncode in (0, 1)  # it may die of it
            capped = (now := stack.status()) is not None and now.cap_w == 3600.0
        elif status is not None and capped and any(job.starts > 1 for job in status.jobs) and status.cap_w is not None:
            stack.call("cap", "none")
        if status is not None and over(status, *jobs):
            break
        time.sleep(0.1)
    assert {"before take", "after take", "before start", "after start", "before declare"} <= set(struck(deaths))
    assert {"before preempt", "before resize"} & set(struck(deaths)), struck(deaths)
    stack.start_scheduler()
    stack.client.cap(None)
    ended_once(stack, jobs)
    _until_as_before(stack, before)


def test_agent_node_and_slurmctld_are_killed_and_every_job_ends_right_under_a_cap_that_holds(stack):
    jobs = {"wide": 800, "left": 380, "right": 380}
    before = {node: stack.hardware(node) for node in stack.site.nodes}
    with Drawn(stack) as drawn:
        train(stack, "wide", 16, jobs["wide"], flags=("--least", "16", "--most", "16"))
        for name in ("left", "right"):
            train(stack, name, 8, jobs[name], "--every-seconds", "2", flags=("--least", "4", "--most", "8"))
        stack.until(lambda status: sum(job.state == "running" and job.done > 8 for job in status.jobs) == 3, "all run")
        wide = stack.client.job("wide")
        assert sorted(wide.place.values()) == [8, 8]
        # slurmctld is gone: that is said, and the agents keep a cap that is cut meanwhile.
        cap_w = 0.7 * drawn.busy_w(BUSY_W)
        stack.site.kill_controller()
        stack.client.cap(cap_w)
        told_s = time.monotonic()
        time.sleep(4.0)
        assert drawn.highest_w(told_s + 2.0, time.monotonic()) <= KEPT * cap_w
        stack.until(lambda status: "slurmctld" in status.engine, "slurmctld does not answer")
        stack.site.start_controller()
        stack.until(lambda status: not status.engine, "slurmctld answers")
        # An agent is killed on a node of the job with two: its daemon gives back what it held, and others make room.
        node = min(wide.place)
        stack.site.nodes[node].kill("agent")
        stack.until(lambda status: _silent(status) == [node], "it is missed")
        stack.start_agent(node)
        stack.until(lambda status: _silent(status) == [], "it is back")
        stack.client.cap(None)
        # The node of a job dies with all that runs there; the job goes on from its last checkpoint, elsewhere or later.
        (node,) = stack.job("right", lambda job: job.state == "running" and not job.aim).place
        stack.site.kill_node(node)
        stack.until(lambda status: _node(status, node).state == "down", f"{node} is down")
        # Slurm gives it up only after a while; a node that is back sooner would let the job hang for a minute.
        stack.job("right", lambda job: job.state == "waiting")
        stack.site.revive_node(node)
        stack.until(lambda status: over(status, *jobs), "all are over")
    ended_once(stack, jobs)
    assert results(stack, "right")[0]["starts"] > 1
    _until_as_before(stack, before)


def test_a_script_that_does_not_listen_and_clocks_that_are_refused_do_not_break_the_cap(stack):
    jobs = {"deaf": 120, "stiff": 150}
    before = {node: stack.hardware(node) for node in stack.site.nodes}
    stack.site.kill_munge()
    lost = stack.until(lambda status: bool(status.engine), "Slurm does not answer")
    stack.site.start_munge()
    assert "munge" in lost.engine
    stack.until(lambda status: not status.engine, "Slurm answers")
    with Drawn(stack) as drawn:
        deaf = ("--ignore-term", "--ignore-usr1", "--every-seconds", "1")
        train(stack, "stiff", 8, jobs["stiff"], rigid=True)
        stack.job("stiff", lambda job: job.state == "running" and job.done > 8)
        train(stack, "deaf", 8, jobs["deaf"], *deaf, flags=("--least", "1", "--most", "8"))
        running = stack.job("deaf", lambda job: job.state == "running" and job.done > 8)
        (node,) = running.place
        with stack.site.nodes[node].simulator.client() as breaker:
            for gpu in range(8):
                breaker.fault(gpu, "unsupported", groups=["sm_clock_set", "limit_set"])
            # Only that node's clocks could keep it; they are refused, that is said, and its job has to go.
            stack.client.cap(5200.0)
            stack.until(lambda status: any(each.says for each in status.nodes), "it is said")
            # It does not listen, so it is killed once its grace is over, and goes on from its last checkpoint.
            stack.job("deaf", lambda job: job.state == "waiting" or job.starts > 1)
            # The rigid one may have to go as well, if that takes too long: the cap is hard. But it never shrinks.
            assert stack.client.job("stiff").gpus in (0, 8)
            kept_s = time.monotonic()
            time.sleep(3.0)
            assert drawn.highest_w(kept_s, time.monotonic()) <= KEPT * 5200.0
            for gpu in range(8):
                breaker.clear(gpu)
        stack.client.cap(None)
        stack.until(lambda status: over(status, *jobs), "all are over")
    ended_once(stack, jobs)
    _until_as_before(stack, before)


def _all_claimed(stack: SlurmStack, status: Status) -> bool:
    """Whether all jobs that are not over run, each with its claim on the GPUs of its nodes."""
    left = [job for job in status.jobs if job.state != "ended"]
    return all(
        job.state == "running"
        and all((stack.site.nodes[node].grants / f"slurm-{job.id}.json").exists() for node in job.place)
        for job in left
    )


def _silent(status: Status) -> list[str]:
    return [node.name for node in status.nodes if any("silent" in said for said in node.says)]


def _node(status: Status, name: str) -> NodeStatus:
    return next(node for node in status.nodes if node.name == name)


def _until_as_before(stack: SlurmStack, before: dict) -> None:
    deadline_s = time.monotonic() + 30.0
    while (now := {node: stack.hardware(node) for node in before}) != before:
        assert time.monotonic() < deadline_s, now
        time.sleep(0.2)
