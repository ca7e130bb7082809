import os
import stat
import subprocess

import pytest

pytest.importorskip("fastapi", reason="the server's packages are not installed (pip install 'joulewise[server]')")

from joulewise.core.errors import BadSpec
from joulewise.core.series import Recurring
from joulewise.serve import tokens
from joulewise.serve.client import Client, jobs
from joulewise.serve.tokens import Scope
from tests import preloaded
from tests.serve.serving import Serving

JOB = Recurring("nightly", (8, 16), 8, 10)


def joulewise(home, *args: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "JOULEWISE_HOME": str(home)}
    environ.pop("JOULEWISE_DATABASE", None)
    return preloaded.run(*args, env=environ)


def test_a_token_is_printed_once_and_its_hash_is_kept_beside_the_database(tmp_path):
    made = joulewise(tmp_path, "serve", "token", "--scope", "write", "--name", "ci of team 7")
    assert (made.returncode, made.stdout.count("\n")) == (0, 1)
    secret = made.stdout.strip()
    (kept,) = tokens.read(tmp_path / "tokens")
    assert (kept.scope, kept.name) == (Scope.WRITE, "ci of team 7")
    assert secret not in made.stderr + (tmp_path / "tokens").read_text()
    assert tokens.Guard([kept]).refuses(Scope.WRITE, authorization=f"Bearer {secret}", peer=None, host=None) is None


def test_a_token_is_not_added_to_a_file_of_something_else(tmp_path):
    (tmp_path / "notes.txt").write_text("milk, bread\n")
    made = joulewise(tmp_path, "serve", "token", "--scope", "read", "--token-file", str(tmp_path / "notes.txt"))
    assert (made.returncode, made.stdout) == (2, "")
    assert (tmp_path / "notes.txt").read_text() == "milk, bread\n"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--host", "0.0.0.0"], "would let others write without a token"),
        (["--host", "::"], "would let others write without a token"),
        (["--host", "nowhere.invalid", "--no-auth"], "no address of this machine"),
        (["--no-auth", "--token-file", "x"], "give one of them"),
        (["--no-auth", "--trust-local-users"], "give one of them"),
        (["--socket", "s", "--token-file", "x"], "give one of them"),
        (["--trust-local-users", "--host", "0.0.0.0"], "would let others write without a token"),
        (["--socket", "/nowhere/of/mine/s", "--no-gpu"], "--socket /nowhere"),
        (["--token-file", "none"], "no such file or directory"),
        (["--database", "mysql://x"], "names no database"),
        (["--no-gpu", "--gpu", "sim:h200"], "give one of them"),
        (["--gpu", "frob:1"], "names no backend"),
        (["--no-gpu", "--interval", "0"], "is outside 0.1 to 60 seconds"),
        (["--plans", "nowhere", "--no-gpu"], "--plans nowhere is no folder"),
        (["--kwh-price", "-1", "--no-gpu"], "must be 0 or more"),
    ],
)
def test_what_cannot_be_served_is_one_line(tmp_path, args, says):
    ran = joulewise(tmp_path, "serve", "--port", "0", *args)
    assert ran.returncode in (1, 2)
    assert ran.stderr.count("\n") == 1
    assert says in ran.stderr


def test_an_empty_file_of_tokens_is_refused(tmp_path):
    (tmp_path / "tokens").write_text("# none yet\n")
    ran = joulewise(tmp_path, "serve", "--port", "0")
    assert ran.returncode == 2
    assert "holds no token" in ran.stderr


def test_it_serves_those_with_a_token_says_where_and_ends_when_told(tmp_path):
    secrets = [joulewise(tmp_path, "serve", "token", "--scope", scope).stdout.strip() for scope in ("read", "write")]
    serving = Serving(str(tmp_path / "jobs.db"), tmp_path, "--host", "0.0.0.0", trusting=False)
    try:
        Client(serving.url, "nightly", secrets[1]).register(JOB)
        assert jobs(serving.url, secrets[0]) == ["nightly"]
        with pytest.raises(BadSpec, match="may only read"):
            Client(serving.url, "weekly", secrets[0]).register(Recurring("weekly", (8,), 8, 1))
        with pytest.raises(BadSpec, match="a token is needed"):
            jobs(serving.url)
        taken = joulewise(tmp_path, "serve", "--port", serving.url.rpartition(":")[2])
        assert taken.returncode == 2
        assert "address already in use; choose another --port" in taken.stderr
    finally:
        said = serving.end()
    assert said == ""


def test_without_tokens_whoever_started_it_is_served_and_their_clients_need_be_told_nothing(tmp_path, monkeypatch):
    serving = Serving(str(tmp_path / "jobs.db"), tmp_path, "--no-gpu", trusting=False)
    try:
        with pytest.raises(BadSpec, match="a token is needed"):
            jobs(serving.url)
        monkeypatch.setenv("JOULEWISE_HOME", str(tmp_path))
        Client(serving.url, "nightly").register(JOB)
        assert jobs(serving.url) == ["nightly"]
        assert stat.S_IMODE(serving.socket.stat().st_mode) == 0o600
    finally:
        serving.end()
    assert not serving.socket.exists()


def test_it_may_trust_all_users_of_the_machine(tmp_path):
    serving = Serving(str(tmp_path / "jobs.db"), tmp_path, "--no-gpu")
    try:
        assert "serving everybody on this machine on http://127.0.0.1:" in serving.said
        Client(serving.url, "nightly").register(JOB)
        assert jobs(serving.url) == ["nightly"]
    finally:
        serving.end()
