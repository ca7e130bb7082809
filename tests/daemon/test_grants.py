import json
import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.core.errors import BadSpec, NotPermitted
from joulewise.daemon import grants
from joulewise.daemon.grants import Grant, Grants

GPU = "GPU-aa"


# Many systems give each user a group of their own.
GROUP = pytest.mark.skipif(os.geteuid() != 0, reason="only root distrusts a group")


def grant(name: str = "one", **fields: object) -> Grant:
    usual = {"uid": 1000, "gpus": [GPU], "cgroup": None, "knobs": None, "expires_unix_s": time.time() + 60, "job": None}
    return Grant.of({"name": name, **usual, **fields}, "test")


names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
ranges = st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)).map(sorted)
valid = st.fixed_dictionaries(
    {
        "name": names,
        "uid": st.integers(0, 2**32 - 2),
        "gpus": st.lists(st.from_regex(r"GPU-[0-9a-f-]{1,36}", fullmatch=True), min_size=1, max_size=4),
        "cgroup": st.one_of(st.none(), st.from_regex(r"/[a-z_0-9]{1,9}(/[a-z_0-9]{1,9}){0,3}", fullmatch=True)),
        "knobs": st.one_of(st.none(), st.dictionaries(st.sampled_from(["sm_mhz", "power_limit_w"]), ranges)),
        "expires_unix_s": st.floats(0, 1e10),
        "job": st.one_of(st.none(), names),
    }
)


@given(valid)
def test_what_is_written_is_what_is_read(fields):
    made = Grant.of(fields, "test")
    assert Grant.of(json.loads(made.to_json()), "test") == made


def test_a_grant_that_is_edited_in_place_is_read_again(tmp_path):
    given = Grants(tmp_path / "grants")
    grants.add(tmp_path / "grants", grant("one"))
    file = tmp_path / "grants" / "one.json"
    old = time.time() - 10
    os.utime(file, (old, old))
    os.utime(file.parent, (old, old))
    time.sleep(0.15)  # until a look at the folder is relied on: times of change come in ticks
    assert [each.uid for each in given.live()] == [1000]
    file.write_text(grant("one", uid=2000).to_json())
    assert [each.uid for each in given.live()] == [2000]


@pytest.mark.parametrize(
    "text",
    ['{"name": "one", "uid": 1, "gpus": ["GPU-a"], "expires_unix_s": ' + "9" * 400 + "}", '{"gpus": ' + "[" * 100_000],
)
def test_a_grant_that_says_more_than_can_be_held_gives_nothing_and_is_told(tmp_path, text):
    grants.add(tmp_path / "grants", grant("good"))
    file = tmp_path / "grants" / "one.json"
    file.write_text(text)
    file.chmod(0o600)
    given = Grants(tmp_path / "grants")
    assert [each.name for each in given.live()] == ["good"]
    assert len(given.problems) == 1


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"uid": -1}, "uid = -1 must be a user's number"),
        ({"uid": True}, "uid = True"),
        ({"uid": "root"}, "uid = 'root'"),
        ({"gpus": []}, "at least one UUID"),
        ({"gpus": "GPU-aa"}, "must be a list"),
        ({"gpus": ["../x"]}, "no GPU's UUID"),
        ({"cgroup": "slurm"}, "must be a path below the root"),
        ({"cgroup": "/"}, "must be a path below the root"),
        ({"cgroup": "/slurm/../user"}, "must be a path below the root"),
        ({"knobs": {"fan": [1, 2]}}, "no knob is called 'fan'"),
        ({"knobs": {"sm_mhz": [2, 1]}}, "must run upwards"),
        ({"knobs": {"sm_mhz": [1, float("nan")]}}, "two numbers"),
        ({"expires_unix_s": None}, "a grant always ends"),
        ({"expires_unix_s": float("inf")}, "a grant always ends"),
        ({"job": "../../etc"}, "must be 1 to 100 letters"),
        ({"name": ".hidden"}, "must be 1 to 100 letters"),
        ({"admin": True}, "'admin' is no part of a grant"),
    ],
)
def test_a_grant_that_makes_no_sense_is_refused(fields, says):
    with pytest.raises(BadSpec) as refused:
        grant(**fields)
    assert says in str(refused.value)


def test_a_grant_is_for_its_user_its_gpus_and_its_control_group_and_what_is_below_it():
    free, inside = grant(), grant(cgroup="/slurm/uid_1000/job_1")
    assert free.holds_in(())
    assert inside.holds_in(("/slurm/uid_1000/job_1",))
    assert inside.holds_in(("/", "/slurm/uid_1000/job_1/step_0"))
    for elsewhere in ("/slurm/uid_1000/job_12", "/slurm/uid_1000", "/", "/x/slurm/uid_1000/job_1"):
        assert not inside.holds_in((elsewhere,))


def test_grants_are_seen_when_added_and_gone_when_removed_or_expired(tmp_path):
    folder, now = tmp_path / "grants", [1000.0]
    seen = Grants(folder, now=lambda: now[0])
    assert seen.live() == ()
    one, two = grant("one", expires_unix_s=time.time() + 1e6), grant("two", job="7", expires_unix_s=time.time() + 2e6)
    grants.add(folder, one)
    assert seen.live() == (one,)
    grants.add(folder, two)
    assert seen.live() == (one, two)
    now[0] = one.expires_unix_s
    assert seen.live() == (two,)
    assert grants.remove(folder, job="7") == (two,)
    assert grants.remove(folder, job="7") == ()
    now[0] = 1000.0
    assert seen.live() == (one,)
    assert seen.problems == ()


def test_every_change_is_seen_even_those_within_one_tick_of_the_file_system(tmp_path):
    seen = Grants(tmp_path)
    for number in range(100):
        grants.add(tmp_path, grant(f"n{number}"))
        assert len(seen.live()) == 1
        grants.remove(tmp_path, name=f"n{number}")
        assert seen.live() == ()


def test_a_settled_folder_is_not_read_again(tmp_path):
    grants.add(tmp_path, grant())
    os.utime(tmp_path, ns=(0, 0))
    deadline = time.monotonic() + 10
    seen = Grants(tmp_path)
    while seen._as_of is None and time.monotonic() < deadline:
        seen.live()
    held = seen.live()
    assert seen.live()[0] is held[0]


def test_adding_closes_the_folder_to_others_and_forgets_the_expired(tmp_path):
    folder = tmp_path / "run" / "grants"
    grants.add(folder, grant("old", expires_unix_s=time.time() - 1))
    grants.add(folder, grant("new"))
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in folder.iterdir()] == ["new.json"]
    assert (folder / "new.json").stat().st_mode & 0o777 == 0o600


def test_a_file_that_others_could_have_written_gives_nothing_and_is_reported(tmp_path):
    grants.add(tmp_path, grant("good"))
    for name in ("open", "owned", "linked"):
        grants.add(tmp_path, grant(name))
    (tmp_path / "open.json").chmod(0o606)
    expected = 2
    (tmp_path / "linked.json").rename(tmp_path / "elsewhere")
    (tmp_path / "linked.json").symlink_to("elsewhere")
    if os.geteuid() == 0:
        os.chown(tmp_path / "owned.json", 12345, 0)
        expected = 3
    seen = Grants(tmp_path)
    assert "good" in {each.name for each in seen.live()}
    assert len(seen.live()) == 4 - expected
    assert len(seen.problems) == expected
    assert any("lets others write" in problem for problem in seen.problems)
    assert any("symlink" in problem for problem in seen.problems)


@pytest.mark.parametrize("mode", [pytest.param(0o770, marks=GROUP), 0o707, 0o1777])
def test_a_folder_that_others_may_write_gives_nothing(tmp_path, mode):
    grants.add(tmp_path, grant())
    tmp_path.chmod(mode)
    seen = Grants(tmp_path)
    assert seen.live() == ()
    assert "chmod go-w" in seen.problems[0]
    with pytest.raises(BadSpec, match="chmod go-w"):
        grants.add(tmp_path, grant())


def test_a_linked_folder_gives_nothing(tmp_path):
    real = tmp_path / "real"
    grants.add(real, grant())
    (tmp_path / "link").symlink_to(real)
    seen = Grants(tmp_path / "link")
    assert seen.live() == ()
    assert "symlink is not followed" in seen.problems[0]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"name": "x"}', "[" * 5000, '{"name": "other"}', "\x00", '"\\ud800"'])
def test_a_damaged_file_gives_nothing_and_hides_no_other(tmp_path, text):
    grants.add(tmp_path, grant("good"))
    (tmp_path / "x.json").write_text(text)
    (tmp_path / "x.json").chmod(0o600)
    seen = Grants(tmp_path)
    assert [each.name for each in seen.live()] == ["good"]
    assert len(seen.problems) == 1


def test_a_file_must_be_called_like_its_grant(tmp_path):
    grants.add(tmp_path, grant("one"))
    (tmp_path / "one.json").rename(tmp_path / "two.json")
    seen = Grants(tmp_path)
    assert seen.live() == ()
    assert "must be called one.json" in seen.problems[0]


def test_a_half_written_file_is_not_looked_at(tmp_path):
    (tmp_path / ".one.1234").write_text("{")
    seen = Grants(tmp_path)
    assert (seen.live(), seen.problems) == ((), ())


def test_where_we_may_not_write_the_way_out_is_named(tmp_path):
    if os.geteuid() == 0:
        with pytest.raises(BadSpec, match="grants cannot be kept"):
            grants.add(tmp_path / "file" / "grants", _blocked(tmp_path))
    else:
        tmp_path.chmod(0o500)
        with pytest.raises(NotPermitted, match="sudo"):
            grants.add(tmp_path / "grants", grant())


def _blocked(tmp_path):
    (tmp_path / "file").write_text("")
    return grant()
