import json
import os
import pwd
import time

import pytest

from joulewise.cli import main
from joulewise.cli.grant import list_grants
from joulewise.core.errors import NotPermitted
from joulewise.daemon import grants
from joulewise.device.node import spawn
from tests import preloaded

ONE = "GPU-01234567-89ab-cdef-0123-456789abcdef"
TWO = "GPU-11234567-89ab-cdef-0123-456789abcdef"


@pytest.fixture
def grant(tmp_path, capsys):
    """``grant("add", …)`` runs the verb on a folder of the test's own: exit code, stdout, stderr."""

    def run(verb: str, *args: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["grant", verb, *args, "--grants", str(tmp_path / "grants")])
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return run


def test_a_grant_is_added_listed_and_removed(grant, tmp_path):
    began = time.time()
    flags = ["--job", "123", "--cgroup", "/slurm/uid_1000/job_123", "--knob", "power_limit_w=200..600"]
    code, out, err = grant("add", "--uid", "1000", "--gpu", f"{ONE},{TWO}", "--for", "2h", *flags)
    assert (code, err) == (0, "")
    assert "uid 1000 from inside /slurm/uid_1000/job_123 may set power_limit_w 200 to 600" in out
    ((made,), _) = grants.read(tmp_path / "grants")
    assert (made.name, made.uid, made.gpus, made.job) == ("job-123-uid-1000", 1000, (ONE, TWO), "123")
    assert (made.cgroup, made.knobs) == ("/slurm/uid_1000/job_123", {"power_limit_w": (200.0, 600.0)})
    assert began + 7200 <= made.expires_unix_s <= time.time() + 7200
    assert "job-123-uid-1000" in grant("list")[1]
    code, out, _ = grant("list", "--json")
    assert json.loads(out)["grants"][0]["gpus"] == [ONE, TWO]
    code, out, _ = grant("remove", "--job", "123", "--json")
    assert (code, json.loads(out)["removed"][0]["name"]) == (0, "job-123-uid-1000")
    assert grant("remove", "--job", "123")[0] == 0
    assert "no grants" in grant("list")[1]


def test_a_grant_ends_by_itself_even_if_nobody_says_when(grant):
    _, out, _ = grant("add", "--uid", "1000", "--gpu", ONE, "--json")
    assert json.loads(out)["expires_unix_s"] == pytest.approx(time.time() + 86400, abs=60)


def test_a_requeued_job_replaces_its_grant(grant):
    for lasting in ("1h", "2h"):
        assert grant("add", "--uid", "1000", "--gpu", ONE, "--job", "7", "--for", lasting)[0] == 0
    (only,) = json.loads(grant("list", "--json")[1])["grants"]
    assert only["expires_unix_s"] > time.time() + 3600


def test_a_user_may_be_named(grant):
    me = pwd.getpwuid(os.geteuid())
    _, out, _ = grant("add", "--uid", me.pw_name, "--gpu", ONE, "--json")
    assert json.loads(out)["uid"] == me.pw_uid


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--uid", "no-such-user", "--gpu", ONE], "nobody here is called so"),
        (["--uid", "4294967295", "--gpu", ONE], "must be a user's number"),
        (["--uid", "1", "--gpu", ONE, "--for", "soon"], "'soon' is no time; write 90s, 30m, 2h or 1d"),
        (["--uid", "1", "--gpu", ONE, "--for", "0"], "'0' is no time"),
        (["--uid", "1", "--gpu", "sim:h200"], "only NVIDIA GPUs of this machine"),
        (["--uid", "1", "--gpu", "MIG-1"], "is a slice"),
        (["--uid", "1", "--gpu", ""], "ends after the colon"),
        (["--uid", "1", "--gpu", ONE, "--knob", "fan=1..2"], "no knob is called 'fan'"),
        (["--uid", "1", "--gpu", ONE, "--knob", "sm_mhz=5"], "is no KNOB=LOW..HIGH"),
        (["--uid", "1", "--gpu", ONE, "--knob", "sm_mhz=9..5"], "must run upwards"),
        (["--uid", "1", "--gpu", ONE, "--knob", "sm_mhz=nan..5"], "two numbers"),
        (["--uid", "1", "--gpu", ONE, "--cgroup", "job_1"], "must be a path below the root"),
        (["--uid", "1", "--gpu", ONE, "--job", "../1"], "must be 1 to 100 letters"),
        (["--uid", "1", "--gpu", ONE, "--name", "a/b"], "must be 1 to 100 letters"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line_and_nothing_is_written(grant, tmp_path, args, says):
    code, out, err = grant("add", *args)
    assert (code, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1
    assert not (tmp_path / "grants").exists()


def test_an_open_range_is_all_that_the_hardware_has(grant):
    _, out, _ = grant("add", "--uid", "1", "--gpu", ONE, "--knob", "sm_mhz", "--knob", "power_limit_w=300..", "--json")
    assert json.loads(out)["knobs"] == {"sm_mhz": [0.0, 1e6], "power_limit_w": [300.0, 1e6]}


def test_removing_what_is_not_there_by_name_is_told(grant):
    assert grant("remove", "ghost")[0] == 2
    assert grant("remove")[0] == 2
    assert grant("remove", "a", "--job", "b")[0] == 2


def test_a_file_that_is_not_believed_is_told_by_list(grant, tmp_path):
    grant("add", "--uid", "1", "--gpu", ONE, "--name", "open")
    (tmp_path / "grants" / "open.json").chmod(0o666)
    code, out, err = grant("list")
    assert (code, out) == (1, "")
    assert "lets others write" in err


def test_numbers_as_slurm_gives_them_are_the_drivers(grant, virtual_nvml, environ, tmp_path):
    with spawn("sim:a100*4") as node, node.client() as client:
        seen = node.environment({**environ, "CUDA_VISIBLE_DEVICES": "3"})
        for spec, expected in (("0,2-3", (0, 2, 3)), ("nvml:1", (1,)), (client.uuids[2][:20], (2,))):
            command = ["grant", "add", "--uid", "1000", "--gpu", spec, "--json", "--grants", str(tmp_path / "g")]
            ran = preloaded.run(*command, env=seen)
            assert ran.returncode == 0, ran.stderr
            assert json.loads(ran.stdout)["gpus"] == [client.uuids[index] for index in expected]


def test_a_second_grant_says_that_the_first_one_stays(grant):
    assert grant("add", "--uid", "1000", "--gpu", f"{ONE},{TWO}", "--name", "first")[2] == ""
    assert grant("add", "--uid", "1001", "--gpu", ONE, "--name", "other")[2] == ""
    code, _, err = grant("add", "--uid", "1000", "--gpu", TWO, "--name", "second")
    assert (code, err.count("\n")) == (0, 1)
    assert "uid 1000 has another grant on these GPUs (first), which stay" in err
    _, out, err = grant("add", "--uid", "1000", "--gpu", TWO, "--name", "third", "--json")
    assert json.loads(out)["name"] == "third"
    assert "2 other grants on these GPUs (first, second)" in err


def test_what_is_given_is_printed_with_its_ranges(grant):
    _, out, _ = grant("add", "--uid", "1", "--gpu", ONE)
    assert "what the site gives to grants (power_limit_w 50% to max, sm_mhz any, memory_mhz any)" in out
    _, out, _ = grant("add", "--uid", "2", "--gpu", ONE, "--knob", "sm_mhz", "--knob", "power_limit_w=300..")
    assert "sm_mhz without bounds, power_limit_w from 300 on" in out


def test_a_range_beyond_the_hardware_is_warned_of(virtual_nvml, environ, tmp_path):
    with spawn("sim:h200") as node, node.client() as client:

        def warned(*knobs: str) -> str:
            words = [word for knob in knobs for word in ("--knob", knob)]
            command = [
                "grant",
                "add",
                "--uid",
                "1",
                "--gpu",
                "nvml:0",
                "--name",
                "one",
                "--grants",
                str(tmp_path / "g"),
            ]
            ran = preloaded.run(*command, *words, env=node.environment(environ))
            assert ran.returncode == 0
            return ran.stderr

        assert warned("power_limit_w=300..700", "sm_mhz") == warned("power_limit_w=300..") == ""
        said = warned("power_limit_w=100..900", "sm_mhz=3000..4000")
        assert f"{client.uuids[0]}: of power_limit_w 100 to 900 it gives 200 to 700, all there is" in said
        assert "sm_mhz 3000 to 4000 gives nothing, since it goes from 345 to 1980" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_a_user_who_may_not_see_grants_is_told_so_in_words(tmp_path):
    (tmp_path / "grants").mkdir(mode=0o700)
    os.seteuid(12345)
    try:
        with pytest.raises(NotPermitted) as refused:
            list_grants(tmp_path / "grants")
    finally:
        os.seteuid(0)
    assert "are root's to see; use 'sudo', or 'joulewise doctor'" in str(refused.value)
    assert "Errno" not in str(refused.value)


def test_a_claim_says_whose_gpus_these_are_and_gives_nothing(grant, tmp_path):
    code, out, err = grant("add", "--uid", "1000", "--gpu", ONE, "--job", "7", "--claim")
    assert (code, err) == (0, "")
    assert f"job 7 of uid 1000 has {ONE}" in out
    assert "to set nothing" in out
    ((made,), _) = grants.read(tmp_path / "grants")
    assert made.claims
    assert made.knobs == {}
    assert made.expires_unix_s == pytest.approx(time.time() + 30 * 86400, abs=60)
    assert grant("remove", "--job", "7")[0] == 0


@pytest.mark.parametrize("flags", [[], ["--job", "7", "--knob", "sm_mhz"], ["--job", "7", "--shared"]])
def test_a_claim_needs_its_job_and_gives_no_knob(grant, flags):
    code, _, err = grant("add", "--uid", "1000", "--gpu", ONE, "--claim", *flags)
    assert code == 2
    assert "--claim gives nothing" in err
