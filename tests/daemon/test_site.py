import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.core.errors import BadSpec
from joulewise.core.knob import DEFAULT, Choices, Setting
from joulewise.daemon import site
from joulewise.daemon.policy import ANY, HALF, Bound, Policy, Range

WHOLE = """
ttl_most_s = 60
poll_s = 0.5
persistence = "refuse"
[pace]
writes_per_s = 5
burst = 10
[baseline."*"]
sm_mhz = 1500
memory_mhz = 1593
[baseline."GPU-aa"]
sm_mhz = 1200
[grant]
for_s = 3600
knobs = { power_limit_w = ["60%", "max"] }
[[rule]]
users = ["root", 1000]
groups = [100]
gpus = ["GPU-aa"]
needs = "nothing"
knobs = { power_limit_w = [300, "90%"], sm_mhz = "any", memory_mhz = "none" }
[[rule]]
users = "*"
"""


# Many systems give each user a group of their own.
GROUP = pytest.mark.skipif(os.geteuid() != 0, reason="only root distrusts a group")


def test_a_file_says_everything_that_a_policy_holds():
    policy = site.parse(WHOLE)
    assert (policy.ttl_most_s, policy.poll_s, policy.persistence) == (60, 0.5, "refuse")
    assert (policy.pace.writes_per_s, policy.pace.burst, policy.grant_for_s) == (5, 10, 3600)
    assert policy.granted == {"power_limit_w": Range(Bound(share=0.6), Bound())}
    first, second = policy.rules
    assert (first.users, first.groups, first.gpus, first.needs) == ({0, 1000}, {100}, {"GPU-aa"}, "nothing")
    assert first.knobs == {"power_limit_w": Range(Bound(300), Bound(share=0.9)), "sm_mhz": ANY, "memory_mhz": None}
    assert (second.users, second.gpus, second.needs) == (None, None, "process")
    assert second.knobs["power_limit_w"] == HALF


def test_a_gpus_own_baseline_goes_before_the_one_for_all():
    policy = site.parse(WHOLE)
    assert policy.baseline("GPU-aa") == Setting(sm_mhz=1200, memory_mhz=1593)
    assert policy.baseline("GPU-bb") == Setting(sm_mhz=1500, memory_mhz=1593)
    assert Policy().baseline("GPU-aa") == DEFAULT


def test_without_a_file_or_without_rules_the_default_rule_stands_and_an_empty_list_means_nobody():
    assert site.load(None) == Policy() == site.parse("")
    assert site.parse("poll_s = 2").rules == Policy().rules
    assert site.parse("rule = []").rules == ()


def test_the_example_in_the_documentation_is_understood_but_for_its_invented_names():
    lines = [line[4:] for line in (site.__doc__ or "").splitlines() if line.startswith("    ")]
    text = "\n".join(lines).replace('"alice", ', "").replace('["ml"]', "[100]")
    assert site.parse(text).rules[0].users == {1000}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ttl_most = 3", "'ttl_most' is not known; known are"),
        ("[pace]\nwrites = 3", "'pace.writes' is not known"),
        ('[[rule]]\nusers = "*"\nuser = 3', "'rule 1.user' is not known"),
        ("ttl_most_s = -1", "ttl_most_s = -1 must be a number of at least 1"),
        ("ttl_most_s = nan", "ttl_most_s = nan must be a number"),
        ("poll_s = true", "poll_s = True must be a number"),
        ("persistence = 'on'", "persistence = 'on' must be one of 'warn', 'refuse', 'set'"),
        ("pace = 3", "pace must be a table"),
        ("rule = 3", "rule must be a list of tables"),
        ("[[rule]]\ngpus = '*'", 'names neither users nor groups; write users = "*"'),
        ("[[rule]]\nusers = 1000", "must be a list of names or numbers"),
        ("[[rule]]\nusers = ['no-such-user-here']", "nobody here is called 'no-such-user-here'"),
        ("[[rule]]\nusers = [-1]", "-1 is neither a name nor a number"),
        ("[[rule]]\nusers = [true]", "True is neither a name nor a number"),
        ("[[rule]]\nusers = '*'\ngpus = ['0']", "'0' is no GPU's UUID"),
        ("[[rule]]\nusers = '*'\ngpus = ['MIG-12']", "'MIG-12' is no GPU's UUID"),
        ("[[rule]]\nusers = '*'\nneeds = 'luck'", "needs = 'luck' must be one of"),
        ("[[rule]]\nusers = '*'\nknobs = { fan = 'any' }", "no knob is called 'fan'"),
        ("[[rule]]\nusers = '*'\nknobs = { sm_mhz = 3 }", "must be [low, high]"),
        ("[[rule]]\nusers = '*'\nknobs = { sm_mhz = [3, 2] }", "runs downwards"),
        ("[[rule]]\nusers = '*'\nknobs = { sm_mhz = ['50%', 'max'] }", "which clocks do not have"),
        ("[[rule]]\nusers = '*'\nknobs = { sm_mhz = ['max', 'min'] }", "'max' must be a number"),
        ("[[rule]]\nusers = '*'\nknobs = { power_limit_w = [-5, 'max'] }", "-5 must be a number from 0 on"),
        ("[baseline.'GPU-aa']\nsm_mhz = inf", "must be a number above 0"),
        ("[baseline.first]\nsm_mhz = 3", "'first' is no GPU's UUID"),
        ("[baseline.'*']\npower_limit_w = 600", "only clocks have a baseline"),
        ("[[rule]]\nusers = '*'\ngroups = [100]", "names groups besides"),
        ("poll_s = 61", "poll_s = 61 must be a number of at most 60"),
        ("poll_s = " + "9" * 400, "must be a number of at least"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_place(text, says):
    with pytest.raises(BadSpec) as refused:
        site.parse(text)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_no_toml_is_refused_by_name(tmp_path):
    file = tmp_path / "site.toml"
    file.write_bytes(b"\xff= 3")
    with pytest.raises(BadSpec, match=f"site file {file}"):
        site.load(file)


@pytest.mark.parametrize("text", ["poll_s = " + "9" * 400, "poll_s = " + "9" * 5000, "rule = " + "[" * 100_000])
def test_a_file_that_says_more_than_can_be_held_is_refused_like_any_other(tmp_path, text):
    file = tmp_path / "site.toml"
    file.write_text(text)
    file.chmod(0o644)
    with pytest.raises(BadSpec, match=f"site file {file}"):
        site.load(file)


def test_a_named_file_must_be_there(tmp_path):
    with pytest.raises(BadSpec, match="there is no site file"):
        site.load(tmp_path / "site.toml")


@pytest.mark.parametrize("mode", [pytest.param(0o620, marks=GROUP), 0o602, 0o666])
def test_a_file_that_others_may_write_is_refused(tmp_path, mode):
    file = tmp_path / "site.toml"
    file.write_text("rule = []")
    file.chmod(mode)
    with pytest.raises(BadSpec, match="lets others write: 'chmod go-w' it"):
        site.load(file)


def test_a_symlink_is_refused(tmp_path):
    (tmp_path / "other.toml").write_text("rule = []")
    (tmp_path / "site.toml").symlink_to("other.toml")
    with pytest.raises(BadSpec, match="a symlink is not followed"):
        site.load(tmp_path / "site.toml")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_somebody_elses_file_or_folder_is_refused(tmp_path):
    file = tmp_path / "site.toml"
    file.write_text("rule = []")
    os.chown(file, 12345, 0)
    with pytest.raises(BadSpec, match="belongs to uid 12345, not to root"):
        site.load(file)
    os.chown(file, 0, 0)
    os.chown(tmp_path, 12345, 0)
    with pytest.raises(BadSpec, match="belongs to uid 12345"):
        site.load(file)


def test_a_folder_on_the_way_that_others_may_write_is_refused_unless_sticky(tmp_path):
    open_to_all = tmp_path / "open"
    (open_to_all / "inner").mkdir(parents=True)
    file: Path = open_to_all / "inner" / "site.toml"
    file.write_text("rule = []")
    open_to_all.chmod(0o777)
    with pytest.raises(BadSpec, match=f"because of {open_to_all}"):
        site.load(file)
    open_to_all.chmod(0o1777)
    assert site.load(file).rules == ()


def test_a_pipe_or_a_huge_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(BadSpec, match="no plain file"):
        site.load(tmp_path / "pipe")
    with (tmp_path / "huge").open("wb") as huge:
        huge.truncate(2 << 20)
    with pytest.raises(BadSpec, match="at most 1048576 are read"):
        site.load(tmp_path / "huge")


bounds = st.one_of(
    st.just(Bound()),
    st.builds(Bound, st.floats(0, 2000)),
    st.builds(lambda share: Bound(share=share), st.floats(0, 2)),
)


@given(bounds, bounds, st.floats(1, 1000), st.floats(0, 1000), st.one_of(st.none(), st.floats(1, 2000)))
def test_a_range_never_reaches_beyond_the_hardware(low, high, least, width, default_limit_w):
    choices = Choices(least, least + width)
    found = Range(low, high).within(choices, default_limit_w)
    if found is not None:
        assert choices.low <= found[0] <= found[1] <= choices.high


def test_a_share_is_of_the_default_limit_or_of_the_highest_where_that_is_not_known():
    assert HALF.within(Choices(100, 700), 600) == (300, 700)
    assert HALF.within(Choices(100, 700), None) == (350, 700)
    assert HALF.within(Choices(400, 700), 600) == (400, 700)
    assert Range(Bound(800), Bound()).within(Choices(100, 700), 600) is None
