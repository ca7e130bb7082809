"""The agent in life: its process, the daemon's, the simulator's and an epilog's; a scheduler that the test plays."""

import os
import re
import threading
import time
from contextlib import ExitStack, contextmanager

import pytest

from joulewise.cluster.declared import Share
from joulewise.core.knob import Setting
from joulewise.device.node import spawn
from joulewise.device.work import Link
from tests.daemon.agents import running_agent
from tests.daemon.running import Words, running_daemon, until

if os.geteuid() != 0:
    pytest.skip("only root may set", allow_module_level=True)

RULES = """
poll_s = 0.1
"""
FREE = [(400.0, None)] * 4


class House:
    def __init__(self, node, daemon, agent, words):
        self.node, self.daemon, self.agent, self.words = node, daemon, agent, words
        self.scheduler = agent.scheduler
        with node.client() as client:
            self.uuids = client.uuids

    def hardware(self):
        """Every GPU's limit, and the top of its SM lock."""
        locks = [self.words.sm_lock(index) for index in range(4)]
        return [(self.words.limit_w(index), lock and lock[1]) for index, lock in enumerate(locks)]

    def truth_j(self, at_unix_s):
        """What all GPUs had really drawn at a moment just ago, since which they have rested."""
        true_j = 0.0
        with self.node.client() as client:
            for index in range(4):
                truth = client.truth(index)
                true_j += truth.energy_j - truth.power_w * (time.time() - at_unix_s)
        return true_j

    @contextmanager
    def busy(self, *indices):
        """Work on these GPUs without a gap: some 390 W each unless held down."""
        enough = threading.Event()

        def work(index):
            link = Link(self.node.directory)
            while not enough.is_set():
                link.work([(0.05, 0.9, 330.0)], index)
            link.close()

        workers = [threading.Thread(target=work, args=(index,)) for index in indices]
        for worker in workers:
            worker.start()
        try:
            yield
        finally:
            enough.set()
            for worker in workers:
                worker.join()


# What an A100's counter shows is a sample: it looks a quarter of the time. Of work in pieces, with gaps where the
# machine is busy, it may show some percent more or less than the truth. An H200's looks all the time.
EXACT = pytest.mark.parametrize("house", ["h200"], indirect=True)


@pytest.fixture
def house(virtual_nvml, tmp_path, request):
    with ExitStack() as ending:
        node = ending.enter_context(spawn(f"sim:{getattr(request, 'param', 'a100-sxm')}*4"))
        daemon = ending.enter_context(running_daemon(node, tmp_path / "daemon", site=RULES))
        words = Words(node)
        ending.callback(words.close)
        agent = ending.enter_context(running_agent(daemon, tmp_path / "agent"))
        yield House(node, daemon, agent, words)


def share(id="7", version=1, **setting):
    return Share(f"job-{id}", id, Setting(**setting), version)


def applied(id="7", version=1):
    def so(report):
        return any((each.id, each.version, each.state) == (id, version, "applied") for each in report.shares)

    return so


def test_a_claim_is_set_and_an_epilog_returns_when_everything_is_back(house):
    house.scheduler.declare(share(sm_mhz=900, power_limit_w=250))
    house.agent.claim("7", *house.uuids[:2])
    house.scheduler.until(applied())
    assert house.hardware() == [(250.0, 900), (250.0, 900), (400.0, None), (400.0, None)]
    over = house.agent.epilog("7")
    assert house.hardware() == FREE
    assert over.returncode == 0, over.stderr
    assert "its lease" not in over.stderr
    house.scheduler.until(lambda report: report.jobs and report.jobs[0].final)
    assert house.hardware() == FREE, "nobody takes it again"


def test_an_epilog_works_with_the_agent_or_the_daemon_dead(house):
    house.scheduler.declare(share(sm_mhz=900, power_limit_w=250))
    house.agent.claim("7", *house.uuids[:2])
    house.scheduler.until(applied())
    house.daemon.kill()
    over = house.agent.epilog("7")
    assert over.returncode == 0, over.stderr
    assert house.hardware() == FREE
    house.daemon.start()
    house.agent.claim("8", house.uuids[3])
    house.scheduler.declare(share("8", sm_mhz=600))
    house.scheduler.until(applied("8"))
    assert house.hardware()[3] == (400.0, 600)
    house.agent.kill()
    assert house.agent.epilog("8").returncode == 0
    assert house.hardware() == FREE


def test_an_agent_that_is_killed_leaves_gpus_as_they_were_and_a_new_one_takes_over_with_its_accounts(house):
    house.scheduler.declare(share(sm_mhz=900), ceiling_w=1900.0)
    house.agent.claim("7", *house.uuids[:2])
    house.scheduler.until(applied())
    before = house.scheduler.until(lambda report: report.jobs and report.jobs[0].gpu_j > 100.0)
    house.agent.kill()
    until(lambda: house.hardware() == FREE, 5.0, what="the daemon ends the lease")
    house.scheduler.down = True  # the last word holds without it
    house.agent.start()
    until(lambda: house.hardware()[:2] == [(400.0, 900)] * 2, 30.0)
    house.scheduler.down = False
    # Some tenths of a second, since counters show nothing new for one.
    after = house.scheduler.until(lambda report: report.time_s > before.time_s + 0.5)
    assert (after.epoch, after.number, after.ceiling_w) == (before.epoch, before.number, 1900.0)
    assert after.jobs[0].gpu_j > before.jobs[0].gpu_j
    assert after.node_j > before.node_j


def test_a_daemon_that_is_killed_and_started_again_gets_its_leases_back(house):
    house.scheduler.declare(share(power_limit_w=250))
    house.agent.claim("7", *house.uuids[:2])
    house.scheduler.until(applied())
    house.daemon.kill()
    refused = house.scheduler.until(lambda report: report.shares and report.shares[0].state == "refused")
    assert "daemon" in refused.shares[0].why
    house.daemon.start()
    house.scheduler.until(applied())
    assert house.hardware() == [(250.0, None)] * 2 + [(400.0, None)] * 2


def test_a_step_of_the_ceiling_is_met_and_everything_comes_back_on_sigterm(house):
    house.scheduler.declare(share())
    house.agent.claim("7", *house.uuids)
    house.scheduler.until(applied())
    with house.busy(0, 1, 2, 3), house.node.client() as client:

        def true_w():
            return 300.0 + sum(client.truth(index).power_w for index in range(4))

        until(lambda: true_w() > 1700.0, 10.0)
        said_s = house.scheduler.declare(share(version=2), ceiling_w=1000.0)
        until(lambda: true_w() <= 1000.0, 10.0)
        met = house.scheduler.until(lambda report: report.ceiling_w == 1000.0 and applied(version=2)(report))
        came_s = next(at_s for at_s, report in house.scheduler.reports if report is met)
        assert met.power_w is not None
        assert sum(limit_w for limit_w, _ in house.hardware()) <= 700.0
        assert came_s - said_s < 10.0  # some 0.1 s on a machine that does nothing else
        # A reading is a second's mean, and may be as old as the last look: on a busy machine some of it is from before.
        # What was really drawn since then is not.
        begun = [client.truth(index) for index in range(4)]
        report = house.scheduler.until(lambda report: report.time_s > met.time_s + 1.0 and report.power_w <= 1010.0)
        since = zip(begun, (client.truth(index) for index in range(4)), strict=True)
        assert 300.0 + sum((b.energy_j - a.energy_j) / (b.time_s - a.time_s) for a, b in since) <= 1010.0
        assert not any("ceiling" in said for said in report.trouble)
    assert house.agent.stop() == 0
    assert house.hardware() == FREE


def test_clocks_that_the_driver_refuses_are_refused_and_the_ceiling_is_kept_by_what_is_left(house):
    house.agent.claim("7", *house.uuids)
    with house.node.client() as client:
        for index in range(4):
            client.fault(index, "unsupported", groups=["sm_clock_set"])
        house.scheduler.declare(share(sm_mhz=900), ceiling_w=1000.0)
        refused = house.scheduler.until(lambda report: report.shares and report.shares[0].state == "refused")
        assert "sm" in refused.shares[0].why.lower()
        with house.busy(0, 1, 2, 3):
            until(lambda: sum(limit_w for limit_w, _ in house.hardware()) <= 700.0, 20.0)
            report = house.scheduler.until(lambda report: report.power_w > 900.0)
            house.scheduler.until(lambda later: later.time_s > report.time_s + 1.0 and later.power_w <= 1010.0)


def test_where_nothing_can_be_set_the_ceiling_is_trouble(house):
    house.agent.claim("7", *house.uuids)
    with house.node.client() as client:
        for index in range(4):
            client.fault(index, "no_permission")
        house.scheduler.declare(share(), ceiling_w=1000.0)
        with house.busy(0, 1, 2, 3):
            report = house.scheduler.until(
                lambda report: any("1000 W cannot be kept" in each for each in report.trouble)
            )
    assert any(re.search("is refused|has no lease", each) for each in report.trouble)
    until(lambda: "1000 W cannot be kept" in house.agent.stderr(), 5.0)


@EXACT
def test_the_energy_of_jobs_and_idle_is_the_nodes_and_the_truth_within_one_percent(house):
    first = house.scheduler.until(lambda _: True)
    true_before_j = house.truth_j(first.time_s)
    house.agent.claim("7", *house.uuids[:2])
    with house.busy(0, 1, 2):
        house.scheduler.until(lambda report: report.time_s > first.time_s + 4.0)
        house.agent.claim("8", house.uuids[2])
        house.scheduler.until(lambda report: report.time_s > first.time_s + 7.0)
    house.agent.epilog("7")
    rested = house.scheduler.until(lambda report: any(job.final for job in report.jobs))
    last = house.scheduler.until(lambda report: report.time_s > rested.time_s + 0.9)
    true_j = house.truth_j(last.time_s) - true_before_j
    assert last.node_j == pytest.approx(sum(job.gpu_j + job.host_j for job in last.jobs) + last.idle_j)
    counted_j = last.node_j - first.node_j - 300.0 * (last.time_s - first.time_s)
    assert counted_j == pytest.approx(true_j, rel=0.01)
    seven, eight = last.jobs
    assert (seven.id, seven.final, eight.id, eight.final) == ("7", True, "8", False)
    assert seven.gpu_j > 2 * 5.0 * 300.0
    assert 0 < eight.gpu_j < seven.gpu_j


@EXACT
def test_however_often_an_agent_is_killed_no_joule_is_lost_or_counted_twice(house):
    first = house.scheduler.until(lambda _: True)
    true_before_j = house.truth_j(first.time_s)
    house.agent.claim("7", *house.uuids[:2])
    with house.busy(0, 1, 2):
        for wait_s in (0.0, 0.4, 0.9, 0.1, 1.3):
            house.scheduler.until(lambda report: report.jobs)
            time.sleep(wait_s)
            house.agent.kill()
            house.agent.start()
        house.scheduler.until(lambda report: report.jobs)
    rested = house.scheduler.until(lambda _: True)
    house.scheduler.until(lambda report: report.time_s > rested.time_s + 0.9)
    time.sleep(0.5)
    house.scheduler.declare(share(version=2))  # told at once: its energies are of its own time, too
    last = house.scheduler.until(applied(version=2))
    true_j = house.truth_j(last.time_s) - true_before_j
    counted_j = last.node_j - first.node_j - 300.0 * (last.time_s - first.time_s)
    assert counted_j == pytest.approx(true_j, rel=0.01)
    reports = sorted((report for _, report in house.scheduler.reports), key=lambda report: report.time_s)
    told = [next((job.gpu_j for job in report.jobs), 0.0) for report in reports]
    assert told == sorted(told), "what a job has drawn never goes down"


def test_a_gpu_whose_driver_hangs_does_not_stop_the_others(house):
    with house.node.client() as client:
        client.fault(3, "hung")
        house.agent.claim("7", house.uuids[0])
        house.scheduler.declare(share(sm_mhz=900))
        house.scheduler.until(applied(), 40.0)
        assert house.hardware()[0] == (400.0, 900)
        report = house.scheduler.until(lambda report: any(house.uuids[3] in each for each in report.trouble), 40.0)
        assert report.gpus[3].power_w is None
        client.clear(3)
        house.scheduler.until(lambda report: report.power_w is not None, 40.0)
