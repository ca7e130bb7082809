"""Output files are checked before the work, without harm to what is there."""

import os
import subprocess
import sys

import pytest

from joulewise.cli import main
from joulewise.cli.outputs import JsonFile, is_recording, refuse_unwritable, refuse_words_of
from joulewise.core.errors import BadSpec


def test_what_is_there_stays_and_nothing_new_is_left(tmp_path):
    old, new, link = tmp_path / "old", tmp_path / "new", tmp_path / "link"
    old.write_text("kept")
    link.symlink_to(tmp_path / "not yet")
    for path in (old, new, link):
        refuse_unwritable("--json", path)
    assert old.read_text() == "kept"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "old"]
    assert link.is_symlink()


@pytest.mark.parametrize("name", ["no/such/folder", ".", "x" * 300])
def test_a_bad_name_is_one_line(tmp_path, name):
    with pytest.raises(BadSpec, match="cannot be written") as caught:
        refuse_unwritable("--record", tmp_path / name)
    assert "\n" not in str(caught.value)


def test_a_named_pipe_is_refused_instead_of_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadSpec, match="it is a pipe"):
        JsonFile(str(tmp_path / "pipe"))


def test_a_link_to_an_open_pipe_may_be_written(tmp_path):
    code = "from joulewise.cli.outputs import JsonFile; file = JsonFile('/dev/stdout'); file.write({'a': 1})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == '{\n  "a": 1\n}\n'


@pytest.mark.parametrize("held", ["print(1)", "[1]", '{"exit_code": 0}', "{" * 5000, "\0"])
def test_a_file_that_holds_no_result_of_ours_is_refused_and_kept(held, tmp_path):
    (tmp_path / "x").write_text(held)
    with pytest.raises(BadSpec, match="is there, and is not what --json writes"):
        JsonFile(str(tmp_path / "x"))
    assert (tmp_path / "x").read_text() == held
    assert not is_recording(tmp_path / "x")


def test_a_result_of_ours_makes_way_for_the_next(tmp_path):
    file = tmp_path / "x.json"
    for number in range(2):
        JsonFile(str(file)).write({"exit_code": number, "duration_s": 1.0, "energy_j": None})


def test_a_file_is_known_by_whatever_name_the_command_has_for_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").write_text("x")
    (tmp_path / "link").symlink_to("data")
    (tmp_path / "hard").hardlink_to("data")
    for word in ("data", "./data", str(tmp_path / "data"), "link", "hard"):
        with pytest.raises(BadSpec, match="is also a word of the command"):
            refuse_words_of(["cat", word], {"--json": tmp_path / "data"})
    (tmp_path / "loop").symlink_to("loop")
    refuse_words_of(["cat", "other", "x" * 5000, "loop", "/dev/null", ""], {"--json": tmp_path / "data"})
    refuse_words_of(["cat", "/dev/null"], {"--json": tmp_path / "new", "--record": None})


RECUR = ["recur", "run", "--job", "x", "--batch-sizes", "8", "--default", "8"]
RECUR += ["--target", "acc>=1", "--max-epochs", "1"]


@pytest.mark.parametrize("verb", [[*RECUR, "--json"], ["plan", "profile", "--out"]])
def test_whatever_verb_runs_a_command_its_words_stay_as_they_are(verb, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "terms.json").write_text('{"exit_code": 0, "duration_s": 1, "energy_j": 2}')
    with pytest.raises(SystemExit) as ended:
        main([*verb, "terms.json", "--", "sh", "terms.json", "{batch_size}"])
    assert ended.value.code == 2
    assert "terms.json is also a word of the command, and would be written over" in capsys.readouterr().err
    assert (tmp_path / "terms.json").read_text().startswith('{"exit_code"')


def test_somebodys_large_file_is_refused_without_being_read(tmp_path, capsys):
    data = tmp_path / "data.tar"
    with data.open("wb") as file:
        file.truncate(1 << 40)  # a terabyte, of which nothing is on the disk
    with pytest.raises(SystemExit) as ended:
        main(["run", "--json", str(data), "--", "true"])
    assert ended.value.code == 2
    assert "is not what --json writes" in capsys.readouterr().err
    assert data.stat().st_size == 1 << 40
