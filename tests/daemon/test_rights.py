from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.core.errors import NotPermitted, OutOfRange, Unsupported
from joulewise.core.knob import Choices, Space
from joulewise.daemon import site
from joulewise.daemon.grants import Grant
from joulewise.daemon.policy import ANY, HALF, Bound, Policy, Range, Rule
from joulewise.daemon.rights import Allowed, Asking, NeedsLook, Seen, decide

GPU = "GPU-aa"
SPACE = Space({"power_limit_w": Choices(200, 700, 1), "sm_mhz": Choices.of([345, 1200, 1980])})
ALICE, BOB = 1000, 2000
MINE, NOBODYS = Seen(((7, ALICE),), mig=False), Seen((), mig=False)


USUAL = Policy()


def ask(
    policy: Policy = USUAL,
    *grants: Grant,
    uid: int = ALICE,
    gids: frozenset[int] = frozenset(),
    cgroups: tuple[str, ...] = ("/",),
    knobs: tuple[str, ...] = ("power_limit_w", "sm_mhz"),
    seen: Seen | None = MINE,
    gpu: str = GPU,
) -> Allowed:
    return decide(Asking(uid, gids, cgroups, gpu, frozenset(knobs)), policy, grants, seen, SPACE, 600.0)


def grant(name: str = "g", **fields: object) -> Grant:
    usual = Grant(name, ALICE, (GPU,), None, None, 5000.0)
    return replace(usual, **fields)  # type: ignore[arg-type]


def test_root_may_set_all_that_the_hardware_can_without_a_look():
    allowed = ask(Policy(rules=()), uid=0, seen=None)
    assert allowed == Allowed({"power_limit_w": (200, 700), "sm_mhz": (345, 1980)}, "root", None)


def test_by_default_whoever_alone_uses_a_gpu_may_set_it_from_half_of_its_default_limit_on():
    allowed = ask()
    assert allowed.ranges == {"power_limit_w": (300, 700), "sm_mhz": (345, 1980)}
    assert (allowed.because, allowed.until_unix_s) == ("rule 1 of the site", None)


def test_a_look_is_asked_for_only_where_it_matters():
    for policy, grants in ((USUAL, []), (Policy(rules=()), [grant()]), (Policy(rules=(Rule(needs="nothing"),)), [])):
        with pytest.raises(NeedsLook):
            ask(policy, *grants, seen=None)
    with pytest.raises(NotPermitted):  # whatever runs there
        ask(Policy(rules=()), seen=None)


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (NOBODYS, "no process of yours runs on it"),
        (Seen(((7, BOB),), mig=False), "shared with uid 2000"),
        (Seen(((7, ALICE), (8, BOB)), mig=False), "shared with uid 2000, so it can be read only"),
        (Seen(((7, ALICE), (8, 0)), mig=False), "shared with uid 0"),
        (Seen(((7, ALICE), (8, -1)), mig=False), "shared with a user not known"),
        (Seen(None, mig=False), "the driver does not say whose processes"),
    ],
)
def test_a_gpu_that_is_not_the_users_alone_is_refused_with_the_reason_and_the_way_out(seen, why):
    with pytest.raises(NotPermitted) as refused:
        ask(seen=seen)
    assert why in str(refused.value)
    assert f"joulewise grant add --uid {ALICE} --gpu {GPU}" in str(refused.value)


@pytest.mark.parametrize("seen", [Seen(((7, BOB),), mig=False), Seen(((7, ALICE), (8, -1)), mig=False)])
def test_a_grant_holds_on_a_shared_gpu_only_if_it_says_so(seen):
    with pytest.raises(NotPermitted, match=r"shared with .* so it can be read only; .* --shared"):
        ask(Policy(rules=()), grant(), seen=seen)
    assert ask(Policy(rules=()), grant(shared=True), seen=seen).because == "grant g"


def test_a_gpu_cut_into_slices_is_for_root_alone():
    sliced = Seen(((7, ALICE),), mig=True)
    for policy, grants in ((USUAL, []), (USUAL, [grant(shared=True)]), (Policy(rules=(Rule(needs="nothing"),)), [])):
        with pytest.raises(NotPermitted, match=r"MIG slices.*only root"):
            ask(policy, *grants, seen=sliced)
    assert ask(uid=0, seen=sliced).because == "root"


def test_a_refusal_names_the_grants_that_come_near():
    with pytest.raises(NotPermitted, match="grant g is for control group /slurm/job_2, where your process is not"):
        ask(USUAL, grant(cgroup="/slurm/job_2"), seen=NOBODYS)
    with pytest.raises(NotPermitted, match="grant g does not name sm_mhz"):
        ask(Policy(rules=()), grant(knobs={"power_limit_w": (300.0, 600.0)}))


def test_a_uid_that_the_kernel_cannot_name_owns_no_process():
    with pytest.raises(NotPermitted, match="cannot name"):
        ask(uid=65534, seen=Seen(((7, 65534),), mig=False))


def test_a_grant_comes_before_rules_and_needs_no_process():
    policy = Policy(rules=(Rule(knobs={"power_limit_w": None, "sm_mhz": None}),))
    allowed = ask(policy, grant(knobs={"power_limit_w": (100.0, 400.0), "sm_mhz": (0.0, 9e9)}), seen=NOBODYS)
    assert allowed.ranges == {"power_limit_w": (200, 400), "sm_mhz": (345, 1980)}
    assert (allowed.until_unix_s, allowed.grants) == (5000.0, ("g",))


def test_a_grant_without_knobs_gives_what_the_site_says():
    assert ask(Policy(rules=()), grant(), seen=NOBODYS).ranges["power_limit_w"] == (300, 700)
    meagre = Policy(rules=(), granted={"power_limit_w": Range(Bound(500), Bound()), "sm_mhz": None})
    assert ask(meagre, grant(), knobs=("power_limit_w",)).ranges == {"power_limit_w": (500, 700)}
    with pytest.raises(NotPermitted, match="no rule of the site names you"):
        ask(meagre, grant(), knobs=("sm_mhz",))


def test_someone_elses_grant_another_gpus_and_another_jobs_give_nothing():
    for other in (grant(uid=BOB), grant(gpus=("GPU-bb",)), grant(cgroup="/slurm/job_2")):
        with pytest.raises(NotPermitted):
            ask(Policy(rules=()), other, cgroups=("/slurm/job_1", "/"))
    assert ask(Policy(rules=()), grant(cgroup="/slurm/job_1"), cgroups=("/slurm/job_1/step_0",))


def test_knobs_are_decided_one_by_one_and_the_first_grant_to_end_bounds_the_whole():
    first = grant("first", knobs={"power_limit_w": (300.0, 600.0)}, expires_unix_s=9000.0)
    second = grant("second", knobs={"sm_mhz": (1000.0, 1980.0)}, expires_unix_s=8000.0)
    allowed = ask(Policy(rules=()), first, second, seen=NOBODYS)
    assert allowed.ranges == {"power_limit_w": (300, 600), "sm_mhz": (1000, 1980)}
    assert (allowed.until_unix_s, set(allowed.grants)) == (8000.0, {"first", "second"})
    mixed = ask(Policy(), first)
    assert (mixed.because, mixed.until_unix_s) == ("grant first, rule 1 of the site", 9000.0)


def test_of_several_grants_the_longest_is_used():
    short, long = grant("a", expires_unix_s=10.0), grant("b", expires_unix_s=20.0)
    assert ask(Policy(rules=()), short, long).grants == ("b",) == ask(Policy(rules=()), long, short).grants


def test_the_first_rule_that_names_user_gpu_and_knob_decides():
    policy = Policy(
        rules=(
            Rule(users=frozenset({BOB}), knobs={"sm_mhz": None}),
            Rule(users=frozenset(), groups=frozenset({50}), knobs={"power_limit_w": ANY}, needs="nothing"),
            Rule(gpus=frozenset({"GPU-bb"}), knobs={"power_limit_w": None}),
            Rule(knobs={"power_limit_w": HALF, "sm_mhz": ANY}),
        )
    )
    assert ask(policy, knobs=("sm_mhz",)).because == "rule 4 of the site"
    with pytest.raises(NotPermitted, match="rule 1 of the site forbids it"):
        ask(policy, uid=BOB, knobs=("sm_mhz",))
    assert ask(policy, gids=frozenset({50}), knobs=("power_limit_w",)).ranges["power_limit_w"][0] == 200
    with pytest.raises(NotPermitted, match="rule 3"):
        ask(policy, gpu="GPU-bb", knobs=("power_limit_w",))


def test_all_knobs_or_none():
    with pytest.raises(NotPermitted):
        ask(Policy(rules=()), grant(knobs={"sm_mhz": (0.0, 2000.0)}))


def test_a_knob_that_the_gpu_lacks_and_a_range_that_it_cannot_do_are_told():
    with pytest.raises(Unsupported):
        ask(knobs=("memory_mhz",))
    with pytest.raises(NotPermitted, match="nothing of what the grant g allows"):
        ask(Policy(), grant(knobs={"power_limit_w": (10.0, 100.0)}), knobs=("power_limit_w",))


def test_values_are_checked_against_what_was_allowed():
    allowed = ask()
    allowed.check("power_limit_w", 300, gpu=GPU)
    allowed.check("sm_mhz", 345, gpu=GPU)
    for low in (299.999, 700.001, float("nan"), -1.0, float("inf")):
        with pytest.raises(OutOfRange, match="outside the 300–700 that you may set"):
            allowed.check("power_limit_w", low, gpu=GPU)
    with pytest.raises(OutOfRange, match="not part of your lease"):
        allowed.check("memory_mhz", 1000, gpu=GPU)


uids = st.sampled_from([ALICE, BOB, 3000])
spans = st.tuples(st.floats(0, 900), st.floats(0, 900)).map(lambda pair: (min(pair), max(pair)))
bound_ranges = st.one_of(st.none(), st.builds(lambda span: Range(Bound(span[0]), Bound(span[1])), spans))
rules = st.builds(
    Rule,
    users=st.one_of(st.none(), st.frozensets(uids)),
    groups=st.frozensets(st.sampled_from([50, 60])),
    gpus=st.one_of(st.none(), st.frozensets(st.sampled_from([GPU, "GPU-bb"]))),
    knobs=st.dictionaries(st.sampled_from(["power_limit_w", "sm_mhz"]), bound_ranges),
    needs=st.sampled_from(["process", "nothing"]),
)
given_grants = st.builds(
    Grant,
    name=st.sampled_from("abc"),
    uid=uids,
    gpus=st.lists(st.sampled_from([GPU, "GPU-bb"]), min_size=1).map(tuple),
    cgroup=st.sampled_from([None, "/job_1", "/job_2"]),
    knobs=st.one_of(st.none(), st.dictionaries(st.sampled_from(["power_limit_w", "sm_mhz"]), spans)),
    expires_unix_s=st.floats(1, 1e6),
    shared=st.booleans(),
)
looks = st.builds(
    Seen, st.one_of(st.none(), st.lists(st.tuples(st.integers(1, 9), uids), max_size=3).map(tuple)), st.booleans()
)
policies = st.builds(Policy, rules=st.lists(rules, max_size=4).map(tuple))


@given(policies, st.lists(given_grants, max_size=4), looks, uids, st.frozensets(st.sampled_from([50, 60])))
def test_nobody_gets_more_than_hardware_grants_and_rules_give_together(policy, grants, seen, uid, gids):
    asking = Asking(uid, gids, ("/job_1/step_0",), GPU, frozenset({"power_limit_w", "sm_mhz"}))
    try:
        allowed = decide(asking, policy, grants, seen, SPACE, 600.0)
    except NotPermitted:
        return
    assert set(allowed.ranges) == asking.knobs
    assert not seen.mig
    owners = {owner for _, owner in seen.processes or ()}
    alone = owners == {uid}
    for knob, (low, high) in allowed.ranges.items():
        assert SPACE.knobs[knob].low <= low <= high <= SPACE.knobs[knob].high
        mine = [each for each in grants if each.uid == uid and GPU in each.gpus and each.cgroup in (None, "/job_1")]
        mine = [each for each in mine if each.shared or not owners - {uid}]
        sources = [each.knobs.get(knob) if each.knobs is not None else (0.0, 9e9) for each in mine]
        for rule in policy.rules:
            named = rule.users is None or uid in rule.users or gids & rule.groups
            span = rule.knobs.get(knob)
            if named and (rule.gpus is None or GPU in rule.gpus) and span and (rule.needs == "nothing" or alone):
                sources.append((span.low.value or 0.0, span.high.value or 0.0))
        assert any(source is not None and source[0] <= low and high <= source[1] for source in sources)


@given(policies, st.lists(given_grants, max_size=4), looks, uids)
def test_asking_before_the_look_never_gives_another_answer_than_after_it(policy, grants, seen, uid):
    asking = Asking(uid, frozenset(), ("/job_1",), GPU, frozenset({"power_limit_w"}))

    def outcome(look: Seen | None) -> object:
        try:
            return decide(asking, policy, grants, look, SPACE, 600.0)
        except (NotPermitted, NeedsLook) as error:
            return type(error)

    before = outcome(None)
    assert before is NeedsLook or before == outcome(seen)


def test_the_ranges_of_a_site_file_reach_the_decision():
    policy = site.parse('[[rule]]\nusers = [1000]\nneeds = "nothing"\nknobs = { power_limit_w = ["75%", 650] }')
    assert ask(policy, knobs=("power_limit_w",)).ranges == {"power_limit_w": (450, 650)}
