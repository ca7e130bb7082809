"""The agent on virtual GPUs in virtual time; with a daemon and processes: ``test_agent_live``."""

import json
from dataclasses import replace

import pytest

from joulewise.cluster.declared import Declared, Share
from joulewise.core.errors import LeaseTaken, NoDaemon, NotPermitted
from joulewise.core.knob import DEFAULT, Setting
from joulewise.core.timeline import VirtualTime
from joulewise.daemon.agent import Agent
from joulewise.daemon.agent_host import DeclaredHost
from joulewise.daemon.agent_memory import Memory
from joulewise.daemon.claims import Claim, held_for
from joulewise.device.hold import hold
from joulewise.device.virtual import VirtualGpu
from joulewise.model import catalog, workloads

LOOK_S = 0.15
BORN_S = 1_700_000_000.0


class Folder:
    """Claims as a prolog would have written them."""

    def __init__(self):
        self.claims, self.problems, self.before = (), (), None

    def look(self):
        if self.before is not None:
            act, self.before = self.before, None
            act()
        return self.claims

    def drop(self, id):
        self.claims = tuple(claim for claim in self.claims if claim.id != id)


class House:
    """One node of virtual A100s and its agent."""

    def __init__(self, folder, count=4, load="transformer", host_w=300.0):
        self.time = VirtualTime()
        self.model = catalog.load("a100-sxm")
        self.gpus = [VirtualGpu(self.model, time=self.time, index=index, gain=1.0) for index in range(count)]
        for index, gpu in enumerate(self.gpus if load else ()):
            gpu.play(workloads.get(load, gpu=self.model, seed=index), pid=1000 + index)
        self.uuids = [gpu.info.uuid for gpu in self.gpus]
        self.folder, self.host_w = folder, host_w
        self.claims = Folder()
        self.leases = {}
        self.refuse = None
        self.number = 0
        self.reports = []
        self.agent = self.born()

    def born(self, host_w=None):
        host = DeclaredHost(self.host_w if host_w is None else host_w)
        return Agent(
            "n1", self.gpus, hold=self.hold, claims=self.claims, host=host, memory=Memory(self.folder), now=self.now,
            boot="b",
        )  # fmt: skip

    def now(self):
        return BORN_S + self.time.now_s()

    def hold(self, gpus, knobs, reason):
        if self.refuse is not None:
            raise self.refuse
        mine = [gpu for gpu in self.gpus if gpu.info.uuid in gpus]
        lease = self.leases[reason] = hold(mine, knobs, reason=reason)
        return lease

    def claim(self, id, *indices, managed=True):
        gpus = tuple(sorted(self.uuids[index] for index in indices))
        kept = [claim for claim in self.claims.claims if claim.id != id]
        self.claims.claims = tuple(sorted((*kept, Claim(id, gpus, managed)), key=lambda claim: claim.id))

    def leave(self, id):
        self.claims.claims = tuple(claim for claim in self.claims.claims if claim.id != id)

    def declare(self, *shares, epoch=1, **how):
        self.number += 1
        self.agent.hear(Declared("n1", epoch, self.number, tuple(shares), **how))

    def live(self, duration_s):
        """Looks, each after its time; the last report."""
        for _ in range(max(1, round(duration_s / LOOK_S))):
            self.time.sleep(LOOK_S)
            report = self.agent.look()
            if report is not None:
                self.reports.append(report)
        return self.reports[-1]

    def locks(self):
        return [gpu.board.state.in_force.sm_mhz for gpu in self.gpus]

    def power_w(self, over_s=1.0):
        """True mean power of the node."""
        before = sum(gpu.truth().energy_j for gpu in self.gpus)
        self.live(over_s)
        return (sum(gpu.truth().energy_j for gpu in self.gpus) - before) / (
            round(over_s / LOOK_S) * LOOK_S
        ) + self.host_w


@pytest.fixture
def house(tmp_path):
    return House(tmp_path / "agent")


def share(id="7", version=1, firm=True, **setting):
    return Share(f"job-{id}", id, Setting(**setting), version, firm)


def state(report, id="7"):
    return next(each for each in report.shares if each.id == id)


def test_a_claimed_job_gets_the_clock_that_is_declared_and_the_others_do_not(house):
    house.claim("7", 0, 1)
    house.declare(share(sm_mhz=900))
    report = house.live(LOOK_S)
    assert (state(report).state, state(report).version) == ("applied", 1)
    assert [gpu.setting for gpu in report.gpus] == [Setting(sm_mhz=900)] * 2 + [DEFAULT] * 2
    assert [gpu.job for gpu in report.gpus] == ["7", "7", None, None]
    house.live(1.0)
    assert [gpu.read().sm_mhz <= 900 for gpu in house.gpus] == [True, True, False, False]


def test_a_share_whose_gpus_are_not_claimed_yet_waits(house):
    house.declare(share(sm_mhz=900))
    assert state(house.live(LOOK_S)).state == "waiting"
    house.claim("7", 0)
    assert state(house.live(LOOK_S)).state == "applied"


def test_a_share_that_is_not_firm_is_prepared_and_what_was_firm_before_stays(house):
    house.claim("7", 0)
    house.declare(share(sm_mhz=900))
    house.live(LOOK_S)
    house.declare(share(version=2, firm=False, sm_mhz=600))
    report = house.live(LOOK_S)
    assert (state(report).state, state(report).version) == ("ready", 2)
    assert report.gpus[0].setting == Setting(sm_mhz=900)
    house.declare(share(version=2, sm_mhz=600))
    report = house.live(LOOK_S)
    assert state(report).state == "applied"
    assert report.gpus[0].setting == Setting(sm_mhz=600)


def test_a_clock_that_the_hardware_does_not_have_is_refused_before_it_is_firm(house):
    house.claim("7", 0)
    house.declare(share(firm=False, sm_mhz=5000))
    report = house.live(LOOK_S)
    assert state(report).state == "refused"
    assert "sm_mhz=5000" in state(report).why


@pytest.mark.parametrize("error", [LeaseTaken("held by uid 1000"), NotPermitted("no"), NoDaemon("no daemon answers")])
def test_a_lease_that_is_refused_is_told_and_tried_again(house, error):
    house.refuse = error
    house.claim("7", 0)
    house.declare(share(sm_mhz=900))
    report = house.live(LOOK_S)
    assert (state(report).state, state(report).why) == ("refused", str(error))
    house.refuse = None
    assert state(house.live(2.0)).state == "applied"


def test_a_job_whose_user_was_granted_its_gpus_is_counted_and_let_alone(house):
    house.claim("7", 0, managed=False)
    house.declare(share(sm_mhz=900))
    report = house.live(3.0)
    assert state(report).state == "refused"
    assert house.leases == {}
    assert report.jobs[0].gpu_j > 0


def test_everything_comes_back_when_the_claim_goes(house):
    house.claim("7", 0, 1)
    house.declare(share(sm_mhz=900, power_limit_w=250))
    house.live(LOOK_S)
    assert house.gpus[0].asked_limit_w == 250
    house.leave("7")
    house.live(LOOK_S)
    assert [gpu.asked_limit_w for gpu in house.gpus] == [400.0] * 4
    assert not house.leases[held_for("7")].alive


def test_a_lease_that_is_taken_just_as_the_claim_goes_is_given_back_unused(house):
    house.declare(share(sm_mhz=900))
    house.claim("7", 0)
    real = house.hold

    def held_while_the_epilog_runs(*args):
        lease = real(*args)
        house.leave("7")
        return lease

    house.agent._hands._hold = held_while_the_epilog_runs
    house.live(LOOK_S)
    assert not house.leases[held_for("7")].alive
    assert house.gpus[0].asked_limit_w == 400.0


def test_a_lease_that_is_ended_by_others_is_taken_again_and_its_setting_is_back(house):
    house.claim("7", 0)
    house.declare(share(sm_mhz=900, power_limit_w=250))
    house.live(LOOK_S)
    house.leases[held_for("7")].release()
    report = house.live(0.3)
    assert house.gpus[0].asked_limit_w == 250
    assert any("its lease has ended" in said for said in report.trouble)
    assert not any("its lease has ended" in said for said in house.live(12.0).trouble)


def test_a_foreign_change_is_seen_said_and_set_again(house):
    house.claim("7", 0)
    house.declare(share(power_limit_w=250))
    house.live(LOOK_S)
    house.gpus[0].ask(replace(house.gpus[0].board.state.asked, limit_w=333.0), house.time.now_s())
    house.live(5.0)
    assert house.gpus[0].asked_limit_w == 250
    assert any("it is set again" in said for report in house.reports for said in report.trouble)


def test_a_job_without_a_share_keeps_its_default_and_is_held_for_the_ceiling(house):
    house.claim("7", 0, 1, 2, 3)
    house.declare(ceiling_w=None)
    report = house.live(1.0)
    assert [gpu.setting for gpu in report.gpus] == [DEFAULT] * 4
    house.declare(ceiling_w=1000.0)
    house.live(1.0)
    assert house.power_w() <= 1000.0


def test_a_step_of_the_ceiling_is_met_within_a_second(house):
    house.claim("7", 0, 1)
    house.claim("8", 2, 3)
    house.declare(share("7"), share("8", sm_mhz=1200))
    house.live(2.0)
    free_w = house.power_w()
    assert free_w > 1200.0
    house.declare(share("7"), share("8", sm_mhz=1200), ceiling_w=0.6 * free_w)
    house.live(LOOK_S)
    assert house.power_w() <= 0.6 * free_w
    report = house.live(1.0)
    assert report.ceiling_w == 0.6 * free_w
    assert [state(report, id).state for id in ("7", "8")] == ["applied"] * 2
    assert not any("ceiling" in said for said in report.trouble)


def test_after_the_ceiling_everything_is_as_declared(house):
    house.claim("7", 0, 1, 2, 3)
    house.declare(share(sm_mhz=1200), ceiling_w=800.0)
    house.live(2.0)
    house.declare(share(sm_mhz=1200))
    house.live(LOOK_S)
    assert [gpu.asked_limit_w for gpu in house.gpus] == [400.0] * 4
    assert house.reports[-1].gpus[0].setting == Setting(sm_mhz=1200)


def test_a_ceiling_below_what_the_lowest_clocks_draw_is_trouble(house):
    house.claim("7", 0, 1, 2, 3)
    house.declare(share(), ceiling_w=350.0)
    report = house.live(4.0)
    assert any(
        "a ceiling of 350 W cannot be kept" in said and "at the lowest clocks" in said for said in report.trouble
    )
    assert [gpu.setting for gpu in report.gpus] == [Setting(sm_mhz=210, power_limit_w=100)] * 4


@pytest.mark.parametrize(("broken", "left"), [("sm_clock_set", "power_limit_w"), ("limit_set", "sm_mhz")])
def test_where_one_knob_is_refused_the_other_keeps_the_ceiling(house, broken, left):
    house.claim("7", 0, 1, 2, 3)
    for gpu in house.gpus:
        gpu.fault(unsupported={broken})
    house.declare(share(), ceiling_w=1000.0)
    report = house.live(4.0)
    assert all(gpu.setting.keys() == {left} for gpu in report.gpus)
    assert house.power_w() <= 1000.0 * 1.02


def test_a_declared_clock_that_the_driver_refuses_is_refused_on_all_gpus_of_the_job_and_the_ceiling_is_kept(house):
    house.claim("7", 0, 1, 2, 3)
    house.gpus[2].fault(unsupported={"sm_clock_set"})
    house.declare(share(sm_mhz=900), ceiling_w=1100.0)
    report = house.live(3.0)
    assert state(report).state == "refused"
    assert all(gpu.setting.get("sm_mhz", 1410) != 900 for gpu in report.gpus)
    assert house.power_w() <= 1100.0 * 1.02


def test_what_cannot_be_set_at_all_makes_the_others_give_way(house):
    house.claim("7", 0, 1)
    house.claim("8", 2, 3, managed=False)
    house.declare(share(), ceiling_w=1500.0)
    house.live(3.0)
    assert house.power_w(3.0) <= 1500.0 * 1.01


def test_energy_of_jobs_and_idle_adds_up_to_the_node_and_to_the_truth(house):
    house.agent.look()
    begun = [gpu.truth().energy_j for gpu in house.gpus]
    began_s = house.time.now_s()
    house.claim("7", 0, 1)
    house.live(20.0)
    house.claim("8", 2)
    house.live(20.0)
    house.leave("7")
    house.live(20.0)
    house.time.sleep(1.0)
    report = house.agent.look()
    told_j = sum(job.gpu_j + job.host_j for job in report.jobs) + report.idle_j
    assert report.node_j == pytest.approx(told_j, abs=1e-6)
    true_j = sum(gpu.truth().energy_j for gpu in house.gpus) - sum(begun) + 300.0 * (house.time.now_s() - began_s)
    assert report.node_j == pytest.approx(true_j, rel=0.01)
    seven = next(job for job in report.jobs if job.id == "7")
    assert seven.final
    assert seven.gpu_s == pytest.approx(80.0, abs=2.0)


def test_a_report_s_energies_are_those_of_its_time_however_long_the_daemon_takes(house):
    house.agent.look()
    begun_s, begun_j = house.now(), sum(gpu.truth().energy_j for gpu in house.gpus)
    quick = house.hold

    def slow(*args):
        house.time.sleep(0.7)
        return quick(*args)

    house.hold = slow
    house.agent = house.born()
    for version in range(1, 5):
        house.claim(str(version), version - 1)
        house.declare(share(str(version), sm_mhz=900))
        house.live(LOOK_S)
        house.live(3 * LOOK_S)
        house.declare(share(str(version), 2, sm_mhz=1200))  # told at once, before the period is over
        report = house.live(LOOK_S)
        assert state(report, str(version)).version == 2
        true_j = sum(gpu.truth().energy_j for gpu in house.gpus) - begun_j + 300.0 * (report.time_s - begun_s)
        assert report.time_s == house.now()
        assert report.node_j == pytest.approx(true_j, abs=0.1 * 1900.0)  # counters show the last tenth later


def test_a_job_stays_in_the_report_until_its_energy_is_written_down(house):
    house.claim("7", 0)
    house.live(1.0)
    house.leave("7")
    assert house.live(1.0).jobs[0].final
    before_j = house.reports[-1].node_j
    house.declare(ended=("7",))
    report = house.live(1.0)
    assert report.jobs == ()
    assert report.node_j > before_j


def test_a_job_that_is_over_and_whose_epilog_was_lost_holds_its_gpus_no_longer(house):
    house.claim("7", 0)
    house.claim("8", 1)
    house.declare(share(sm_mhz=900))
    house.live(1.0)
    before = house.reports[-1]
    assert house.leases[held_for("7")].alive
    house.declare(ended=("7",))
    report = house.live(1.0)
    assert not house.leases[held_for("7")].alive
    assert house.leases[held_for("8")].alive
    assert [(job.id, job.final) for job in report.jobs] == [("8", False)]
    assert report.node_j > before.node_j


def test_an_agent_that_was_killed_goes_on_where_its_accounts_were(house):
    house.claim("7", 0, 1)
    house.declare(share(sm_mhz=900), ceiling_w=1500.0)
    before = house.live(5.0)
    for lease in house.leases.values():
        lease.release()  # as the daemon does
    house.time.sleep(10.0)
    house.agent = house.born()
    after = house.live(LOOK_S)
    assert (after.epoch, after.number, after.ceiling_w) == (before.epoch, before.number, 1500.0)
    assert state(after).state == "applied"
    assert after.jobs[0].gpu_j > before.jobs[0].gpu_j + 2 * 10.0 * 84
    assert after.node_j - before.node_j > 10.0 * house.host_w


def test_a_scheduler_of_an_older_epoch_is_not_heard_even_after_a_restart(house):
    house.claim("7", 0)
    house.declare(share(sm_mhz=900), epoch=5)
    house.live(LOOK_S)
    house.agent.close()
    house.agent = house.born()
    house.declare(share(version=9, sm_mhz=600), epoch=4)
    report = house.live(LOOK_S)
    assert report.epoch == 5
    assert report.gpus[0].setting == Setting(sm_mhz=900)
    assert any("epoch 4 is ignored" in said for said in report.trouble)


def test_a_declaration_that_was_overtaken_is_ignored_and_one_for_another_node_too(house):
    house.claim("7", 0)
    house.agent.hear(Declared("n1", 1, 5, (share(sm_mhz=900),)))
    house.agent.hear(Declared("n1", 1, 4, (share(sm_mhz=600),)))
    house.agent.hear(Declared("n2", 1, 6, (share(sm_mhz=300),)))
    report = house.live(LOOK_S)
    assert (report.number, report.gpus[0].setting) == (5, Setting(sm_mhz=900))


def test_a_report_comes_each_period_and_at_once_when_something_changes(house):
    house.agent.look()
    house.reports.clear()
    house.live(3.0)
    assert 2 <= len(house.reports) <= 4
    house.reports.clear()
    house.claim("7", 0)
    house.live(LOOK_S)
    assert house.reports[0].gpus[0].job == "7"


def test_closing_gives_everything_back(house):
    house.claim("7", 0)
    house.declare(share(power_limit_w=200))
    house.live(LOOK_S)
    house.agent.close()
    assert house.gpus[0].asked_limit_w == 400.0


def test_a_host_that_cannot_be_counted_is_said(tmp_path):
    house = House(tmp_path, load=None)
    house.agent._host = DeclaredHost(None, "the host's energy is not counted: no RAPL; --host-watts declares it")
    report = house.live(1.5)
    assert any("--host-watts" in said for said in report.trouble)
    assert all(job.host_j == 0 for job in report.jobs)


def test_a_gpu_that_is_lost_is_said_and_the_rest_goes_on(house):
    house.claim("7", 1)
    house.declare(share(sm_mhz=900))
    house.gpus[0].fault(lost=True)
    report = house.live(1.5)
    assert any(house.uuids[0] in said for said in report.trouble)
    assert report.power_w is None
    assert state(report).state == "applied"


def test_damaged_memory_is_put_aside_and_said(tmp_path):
    folder = tmp_path / "agent"
    folder.mkdir()
    (folder / "accounts.json").write_text("{half")
    (folder / "declared.json").write_text(json.dumps({"epoch": "x"}))
    house = House(folder, load=None)
    report = house.live(1.0)
    assert sum("was damaged" in said for said in report.trouble) == 2
    assert (folder / "accounts.json.damaged").exists()


def test_a_full_disk_is_said_and_the_ceiling_is_kept(house, monkeypatch):
    house.claim("7", 0, 1, 2, 3)
    house.live(1.0)
    monkeypatch.setattr(house.agent._memory, "folder", house.folder / "gone")
    house.declare(share(), ceiling_w=1000.0)
    report = house.live(1.0)
    assert any("cannot keep its accounts" in said for said in report.trouble)
    assert house.power_w() <= 1000.0
