"""Output files are checked before the work, without harm to what is there."""

import os
import subprocess
import sys

import pytest

from joulewise.cli.outputs import JsonFile, refuse_unwritable
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
