import time

import pytest

from joulewise.core.errors import NotPermitted
from joulewise.core.knob import Choices, Space
from joulewise.daemon import grants
from joulewise.daemon.claims import Claim, Claims, held_for
from joulewise.daemon.grants import Grant
from joulewise.daemon.policy import Policy
from joulewise.daemon.rights import Asking, Seen, decide

ONE = "GPU-01234567-89ab-cdef-0123-456789abcdef"
TWO = "GPU-11234567-89ab-cdef-0123-456789abcdef"
SPACE = Space({"sm_mhz": Choices(210, 1410, 15)})


def given(job, *gpus, knobs=None, lasting_s=3600.0, name=None, uid=1000):
    name = name or f"slurm-{job}"
    return Grant(name, uid, gpus, None, {} if knobs is None else knobs, time.time() + lasting_s, job)


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "grants"
    made.mkdir(mode=0o700)
    return made


def test_a_prologs_claim_is_seen_and_gone_after_its_epilog(folder):
    claims = Claims(folder)
    assert claims.look() == ()
    grants.add(folder, given("7", ONE, TWO))
    assert claims.look() == (Claim("7", (ONE, TWO), managed=True),)
    grants.remove(folder, job="7")
    assert claims.look() == ()


def test_a_grant_that_gives_something_names_its_jobs_gpus_but_leaves_them_to_the_user(folder):
    grants.add(folder, given("7", ONE, knobs={"sm_mhz": (210.0, 1410.0)}))
    assert Claims(folder).look() == (Claim("7", (ONE,), managed=False),)


def test_a_grant_without_a_job_claims_nothing(folder):
    grants.add(folder, given(None, ONE, name="by-hand"))
    assert Claims(folder).look() == ()


def test_a_claim_ends_by_itself(folder):
    later_s = time.time() + 100.0
    grants.add(folder, given("7", ONE, lasting_s=50.0))
    assert Claims(folder, now=lambda: later_s).look() == ()


def test_of_two_claims_on_one_gpu_the_one_that_ends_last_counts_and_it_is_said(folder):
    grants.add(folder, given("7", ONE, lasting_s=100.0))
    grants.add(folder, given("8", ONE, TWO, lasting_s=200.0))
    claims = Claims(folder)
    assert claims.look() == (Claim("8", (ONE, TWO), managed=True),)
    assert "is claimed by job 8 and by job 7" in claims.problems[0]
    grants.remove(folder, job="7")
    claims.look()
    assert claims.problems == ()


def test_a_claim_keeps_the_jobs_user_from_setting_what_a_rule_would_allow():
    asking = Asking(1000, frozenset({1000}), (), ONE, frozenset({"sm_mhz"}))
    alone = Seen(((42, 1000),), mig=False)
    assert decide(asking, Policy(), [], alone, SPACE, 400.0).because == "rule 1 of the site"
    with pytest.raises(NotPermitted, match="the cluster's scheduler sets the GPUs of job 7"):
        decide(asking, Policy(), [given("7", ONE)], alone, SPACE, 400.0)


def test_a_claim_does_not_stand_in_the_way_of_a_grant_that_an_admin_gives_besides():
    asking = Asking(1000, frozenset({1000}), (), ONE, frozenset({"sm_mhz"}))
    both = [given("7", ONE), given("7", ONE, knobs={"sm_mhz": (210.0, 900.0)}, name="by-hand")]
    allowed = decide(asking, Policy(), both, Seen((), mig=False), SPACE, 400.0)
    assert allowed.ranges == {"sm_mhz": (210.0, 900.0)}


def test_an_epilog_knows_the_agents_lease_by_its_reason():
    assert held_for("7") != held_for("77")
