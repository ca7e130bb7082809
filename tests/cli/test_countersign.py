"""Forged savings, and runs that another user's server has countersigned: all in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the server's packages are not installed (pip install 'joulewise[server]')")
pytest.importorskip("cryptography", reason="the signing library is not installed (pip install 'joulewise[sign]')")

from bench.siege.forgeries import RUN, honest_runs
from joulewise.store import Database, SqliteStore, unsent
from tests import preloaded
from tests.scenario_table import Shown
from tests.serve.serving import Serving

PYTHON = sys.executable
SOMEONE = 54321
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of a run that was tuned on a virtual GPU and kept."""
    return honest_runs(tmp_path_factory.mktemp("honest"), 0, ["steady"])["steady"]


@pytest.fixture
def database(honest: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "joulewise.db"
    copy.write_bytes(honest.read_bytes())
    return copy


def joulewise(*args: object, **environ: str) -> subprocess.CompletedProcess[str]:
    return preloaded.run(*map(str, args), env={**os.environ, "COLUMNS": "160", **environ})


def verify(database: Path, *flags: object) -> subprocess.CompletedProcess[str]:
    return joulewise("verify", RUN, "--database", database, *flags)


@contextmanager
def store_of(database: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(Database(database))
    yield store
    store.close()


def forge(database: Path, factor: float) -> None:
    preloaded.run(database, RUN, str(factor), module="tests.cli.forger", check=True)


def test_joules_that_were_multiplied_do_not_verify(database: Path, scenario: Callable[..., Shown]) -> None:
    shown = scenario("R32", "a 35-line script multiplies joules, claims and seals again", criterion="verify exits 1")
    before = verify(database)
    assert before.returncode == 0, before.stdout + before.stderr
    assert "label: checked against readings — not countersigned" in before.stdout
    assert "  seal sha256:" in before.stdout
    forge(database, 0.6)
    after = verify(database)
    assert after.returncode == 1
    assert ": saved 37.0 % " in after.stdout.splitlines()[0], "the claim itself was computed again"
    lines = [line for line in after.stdout.splitlines() if " J, its readings " in line]
    assert len(lines) > 5, "block by block, with both values"
    assert "label:" not in after.stdout
    shown.saw(f"exit 1; {lines[0].strip()}")


def test_a_run_without_readings_is_recomputed_from_its_blocks_alone(database: Path) -> None:
    import sqlite3

    with sqlite3.connect(database) as connection:
        connection.execute("DELETE FROM readings")
    found = json.loads(verify(database, "--json").stdout)
    assert (found["label"], found["countersigned"], found["problems"]) == ("recomputed from blocks", None, [])
    assert found["readings"]["why_not"].startswith("no readings of GPU-")


def test_a_key_that_is_none_is_one_line(database: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("# nobody yet\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for key, says in (
        ("nowhere.pub", "cannot be read"),
        (tmp_path, "cannot be read"),
        (tmp_path / "empty", "holds no key"),
        (tmp_path / "binary", "not text"),
        ("ed25519:AAAA", "is no public key"),
    ):
        ran = verify(database, "--key", key)
        assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1), ran.stderr
        assert says in ran.stderr


class Watcher(Serving):
    """A ``joulewise serve`` of another user, with a key that only that user can read."""

    def __init__(self, folder: Path) -> None:
        self.key = folder / "countersign.key"
        super().__init__(str(folder / "store.db"), folder, "--no-gpu", "--countersign-key", str(self.key))

    def start_again(self) -> None:
        user = {} if os.geteuid() else {"as": str(SOMEONE)}
        before = [PYTHON, str(Path(__file__).with_name("as_someone.py")), user["as"]] if user else []
        self.process = subprocess.Popen(
            [*before, *self._command, "--port", self._port], env=self._environ, stderr=subprocess.PIPE, text=True
        )

    @property
    def public(self) -> str:
        return next(word for word in self.said.split() if word.startswith("ed25519:"))


@pytest.fixture
def watcher() -> Iterator[Watcher]:
    with ExitStack() as ending:
        folder = Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="joulewise-watcher-")))
        if os.geteuid() == 0:
            os.chown(folder, SOMEONE, SOMEONE)
        watcher = Watcher(folder)
        ending.callback(watcher.end)
        yield watcher


def test_another_user_s_server_countersigns_and_what_is_forged_later_is_found(
    database: Path, watcher: Watcher, tmp_path: Path, scenario: Callable[..., Shown]
) -> None:
    shown = scenario("R32", "countersigned by another user, then forged", criterion="label, then exit 1")
    public = watcher.public
    assert watcher.key.stat().st_mode & 0o777 == 0o600
    if os.geteuid() == 0:
        assert watcher.key.stat().st_uid == SOMEONE
    signed = joulewise("countersign", RUN, "--at", watcher.url, "--database", database)
    assert signed.returncode == 0, signed.stderr
    assert public in signed.stdout
    keys = tmp_path / "trusted"
    keys.write_text(f"# whom I trust\n{public} watcher of team 7\n")
    good = verify(database, "--key", keys)
    assert good.returncode == 0, good.stdout
    assert "label: countersigned by watcher of team 7, checked against readings\n" in good.stdout
    assert "existed at" in good.stdout
    untold = verify(database)
    assert "label: checked against readings — not countersigned" in untold.stdout
    assert "no key that you trust: nothing follows from it" in untold.stdout
    forge(database, 0.6)
    bad = verify(database, "--key", keys)
    assert bad.returncode == 1
    assert "watcher of team 7 countersigned another journal" in bad.stdout
    shown.saw("countersigned by watcher of team 7; after the forgery exit 1")


def test_the_forger_s_own_server_proves_nothing(database: Path, watcher: Watcher, tmp_path: Path) -> None:
    assert watcher.public
    forge(database, 0.9)
    assert joulewise("countersign", RUN, "--at", watcher.url, "--database", database).returncode == 0
    other = tmp_path / "other.pub"
    other.write_text("ed25519:" + "A" * 43 + "= the real watcher\n")
    found = json.loads(verify(database, "--key", other, "--json").stdout)
    assert (found["label"], found["countersigned"]) == (None, None)
    assert "no key that you named has countersigned this run" in found["problems"]


def test_what_could_not_be_written_is_taken_in_before_it_is_signed(
    database: Path, watcher: Watcher, tmp_path: Path
) -> None:
    """Readings that a locked store did not take at the run's end would look like a change of what was signed."""
    public, home = watcher.public, tmp_path / "home"
    with store_of(database) as store, pytest.MonkeyPatch.context() as patch:
        patch.setenv("JOULEWISE_HOME", str(home))
        (uuid,) = store.readings().gpus(RUN)
        samples = list(store.readings().samples(RUN, uuid))
        store.tables.change("DELETE FROM readings WHERE stream = :run", {"run": RUN})
        store.readings().write(RUN, uuid, samples[:-20])
        saved = unsent.save(store, unsent.Unsent(RUN, samples={uuid: samples[-20:]}))
    signed = joulewise("countersign", RUN, "--at", watcher.url, "--database", database, JOULEWISE_HOME=str(home))
    assert signed.returncode == 0, signed.stderr
    assert not saved.exists()
    joulewise("history", "--database", database, JOULEWISE_HOME=str(home))
    good = verify(database, "--key", public)
    assert good.returncode == 0, good.stdout
    assert "checked against readings" in good.stdout


def test_a_run_of_which_a_file_holds_more_is_not_signed(database: Path, watcher: Watcher, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "unsent").mkdir(parents=True)
    left = home / "unsent" / f"{RUN}-0000.jsonl"
    other = {"unsent": 1, "store": str(tmp_path / "elsewhere.db"), "run": RUN, "at": 1.0}
    left.write_text(json.dumps(other) + "\n")
    ran = joulewise("countersign", RUN, "--at", watcher.url, "--database", database, JOULEWISE_HOME=str(home))
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1), ran.stderr
    assert str(left) in ran.stderr


def test_a_server_without_a_key_countersigns_nothing(database: Path, tmp_path: Path) -> None:
    serving = Serving(str(tmp_path / "store.db"), tmp_path, "--no-gpu")
    try:
        ran = joulewise("countersign", RUN, "--at", serving.url, "--database", database)
    finally:
        serving.end()
    assert ran.returncode == 2
    assert ran.stderr.count("\n") == 1


@pytest.mark.parametrize("content", [b"", b"no key", b"\xff" * 40])
def test_a_file_that_holds_no_key_is_refused(content: bytes, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(content)
    key.chmod(0o600)
    ran = joulewise("serve", "--port", "0", "--no-gpu", "--countersign-key", key, JOULEWISE_HOME=str(tmp_path))
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1), ran.stderr
    assert "holds no signing key" in ran.stderr


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(b"x")
    key.chmod(0o644)
    ran = joulewise("serve", "--port", "0", "--no-gpu", "--countersign-key", key, JOULEWISE_HOME=str(tmp_path))
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1), ran.stderr
    assert "others than its owner may read" in ran.stderr
