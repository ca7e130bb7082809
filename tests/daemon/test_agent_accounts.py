import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.core.errors import BadSpec
from joulewise.daemon.agent_accounts import Accounts

GPUS = ("GPU-0", "GPU-1", "GPU-2")


def energy(accounts, id):
    return next(job for job in accounts.jobs() if job.id == id)


def test_what_a_gpu_draws_goes_to_the_job_that_held_it_since_the_last_count():
    accounts = Accounts()
    accounts.count(0.0, {"GPU-0": 1000.0}, {})
    accounts.count(1.0, {"GPU-0": 1050.0}, {"GPU-0": "7"})
    accounts.count(2.0, {"GPU-0": 1350.0}, {})
    accounts.count(3.0, {"GPU-0": 1400.0}, {})
    assert energy(accounts, "7").gpu_j == 300.0
    assert energy(accounts, "7").gpu_s == 1.0
    assert accounts.idle_j == 100.0
    assert accounts.node_j == 400.0


def test_a_job_is_final_once_it_holds_nothing_and_not_when_it_comes_back():
    accounts = Accounts()
    accounts.count(0.0, {"GPU-0": 0.0}, {"GPU-0": "7"})
    assert not energy(accounts, "7").final
    accounts.count(1.0, {"GPU-0": 10.0}, {})
    assert energy(accounts, "7").final
    accounts.count(2.0, {"GPU-0": 20.0}, {"GPU-0": "7"})
    assert not energy(accounts, "7").final
    accounts.count(3.0, {"GPU-0": 30.0}, {})
    assert energy(accounts, "7").gpu_j == 20.0


def test_the_hosts_energy_is_shared_by_gpus_held_and_idles_where_nobody_holds_any():
    accounts = Accounts()
    accounts.count(0.0, {}, {"GPU-0": "7", "GPU-1": "8", "GPU-2": "8"})
    accounts.count(1.0, {}, {}, host_j=300.0)
    accounts.count(2.0, {}, {}, host_j=50.0)
    assert energy(accounts, "7").host_j == pytest.approx(100.0)
    assert energy(accounts, "8").host_j == pytest.approx(200.0)
    assert accounts.idle_j == 50.0


def test_a_counter_that_starts_anew_loses_nothing_and_never_goes_down():
    accounts = Accounts()
    accounts.count(0.0, {"GPU-0": 500.0}, {"GPU-0": "7"})
    accounts.count(1.0, {"GPU-0": 800.0}, {"GPU-0": "7"})
    accounts.count(2.0, {"GPU-0": 20.0}, {"GPU-0": "7"})
    assert energy(accounts, "7").gpu_j == 320.0
    assert accounts.drawn_j("GPU-0") == 320.0


def test_a_gpu_that_could_not_be_read_is_counted_when_it_can_be_again():
    accounts = Accounts()
    accounts.count(0.0, {"GPU-0": 100.0}, {"GPU-0": "7"})
    accounts.count(1.0, {}, {"GPU-0": "7"})
    accounts.count(2.0, {"GPU-0": 300.0}, {"GPU-0": "7"})
    assert energy(accounts, "7").gpu_j == 200.0


def test_what_was_drawn_while_nobody_counted_goes_to_those_who_hold_the_gpus_afterwards():
    before = Accounts("boot-1")
    before.count(0.0, {"GPU-0": 100.0}, {"GPU-0": "7"})
    after = Accounts.of(json.loads(json.dumps(before.kept())), "boot-1")
    after.count(50.0, {"GPU-0": 600.0}, {"GPU-0": "8"})
    assert energy(after, "8").gpu_j == 500.0
    assert energy(after, "7").final


def test_after_a_boot_the_counters_have_begun_at_nought_and_no_time_was_held():
    before = Accounts("boot-1")
    before.count(0.0, {"GPU-0": 100.0}, {"GPU-0": "7"})
    after = Accounts.of(before.kept(), "boot-2")
    after.count(9000.0, {"GPU-0": 600.0}, {"GPU-0": "8"})
    assert energy(after, "8").gpu_j == 600.0
    assert energy(after, "8").gpu_s == 0.0


def test_a_job_that_still_holds_a_gpu_is_not_forgotten_and_a_forgotten_one_stays_in_the_nodes_energy():
    accounts = Accounts()
    accounts.count(0.0, {"GPU-0": 0.0, "GPU-1": 0.0}, {"GPU-0": "7", "GPU-1": "8"})
    accounts.count(1.0, {"GPU-0": 10.0, "GPU-1": 20.0}, {"GPU-1": "8"})
    assert accounts.forget(["7", "8", "9"])
    assert [job.id for job in accounts.jobs()] == ["8"]
    assert accounts.node_j == 30.0
    assert not accounts.forget(["7"])


@pytest.mark.parametrize("damaged", [None, [], "x", {"version": 9}, {"jobs": {"7": 3}}, {"version": 1, "jobs": 4}])
def test_what_are_no_accounts_is_refused(damaged):
    with pytest.raises(BadSpec):
        Accounts.of(damaged)


counts = st.lists(
    st.tuples(
        st.floats(0.0, 5.0),
        st.dictionaries(st.sampled_from(GPUS), st.floats(0.0, 1e6)),
        st.dictionaries(st.sampled_from(GPUS), st.sampled_from(["7", "8", "9"])),
        st.none() | st.floats(0.0, 1e4),
        st.sampled_from(["go on", "killed", "forget"]),
    ),
    max_size=30,
)


@given(counts)
def test_whatever_happens_jobs_and_idle_add_up_to_the_node_and_nothing_goes_down(counts):
    accounts, time_s, settled_j = Accounts("b"), 0.0, 0.0
    for wait_s, shown_j, holders, host_j, then in counts:
        before_j = {job.id: job.gpu_j + job.host_j for job in accounts.jobs()}
        node_j, idle_j = accounts.node_j, accounts.idle_j
        time_s += wait_s
        accounts.count(time_s, shown_j, holders, host_j)
        after_j = {job.id: job.gpu_j + job.host_j for job in accounts.jobs()}
        assert all(after_j[id] >= before_j[id] for id in before_j)
        assert accounts.idle_j >= idle_j
        assert accounts.node_j >= node_j - 1e-6
        if then == "killed":
            accounts = Accounts.of(json.loads(json.dumps(accounts.kept())), "b")
            assert {job.id: job.gpu_j + job.host_j for job in accounts.jobs()} == after_j
        elif then == "forget" and accounts.forget(["7"]):
            settled_j += after_j["7"]
        told_j = sum(job.gpu_j + job.host_j for job in accounts.jobs())
        assert accounts.node_j == pytest.approx(told_j + settled_j + accounts.idle_j, rel=1e-9, abs=1e-6)
