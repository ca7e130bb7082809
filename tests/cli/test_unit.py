"""The systemd unit as text; what systemd and the kernel make of it is in tests/scenarios/test_unit.py."""

import os
import sys
from pathlib import Path

import pytest

from joulewise.cli import main, unit
from joulewise.core.errors import BadSpec

ROOT = Path(__file__).parents[2]


def test_the_unit_in_packaging_is_the_one_that_is_installed():
    assert (ROOT / "packaging" / "joulewise.service").read_text() == unit.text()


def test_the_unit_is_made_for_the_python_that_joulewise_lies_in():
    made = unit.made_for(Path("/opt/joulewise/bin/python"), [Path("/opt/joulewise/lib/python3.11/site-packages")])
    assert "ExecStart=/opt/joulewise/bin/python -I -m joulewise.daemon\n" in made
    assert "ExecStopPost=/opt/joulewise/bin/python -I -m joulewise restore --socket /dev/null\n" in made
    assert unit.SYSTEM_PYTHON not in made
    assert "ProtectHome=yes" in made


def test_an_installation_in_a_home_may_be_read_there_and_nothing_else_changes():
    opt, home = (unit.made_for(Path(f"{where}/venv/bin/python"), []) for where in ("/opt", "/home/ada"))
    changed = [
        pair
        for pair in zip(opt.splitlines(), home.splitlines(), strict=True)
        if pair[0].replace("/opt", "") != pair[1].replace("/home/ada", "")
    ]
    assert changed == [("ProtectHome=yes", "ProtectHome=read-only")]


@pytest.mark.parametrize("path", ["/tmp/venv/bin/python", "/var/tmp/x/python"])
def test_a_temporary_folder_is_refused(path):
    with pytest.raises(BadSpec, match="a temporary folder that a service does not see; install it in a lasting place"):
        unit.made_for(Path(path), [])


@pytest.mark.parametrize("path", ["/opt/my venv/bin/python", "/opt/100%/bin/python", "/opt/$HOME/python"])
def test_a_path_that_systemd_would_read_otherwise_is_refused(path):
    with pytest.raises(BadSpec, match="mean something to systemd"):
        unit.made_for(Path(path), [])


def test_a_folder_that_somebody_else_may_write_is_named(tmp_path):
    open_to_all = tmp_path / "venv"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    python = open_to_all / "python"
    python.write_text("")
    assert unit.untrusted([python]) is not None
    assert str(open_to_all) in unit.untrusted([python])
    open_to_all.chmod(0o755)
    assert unit.untrusted([python]) is None


def test_a_folder_that_the_service_could_not_enter_is_named(tmp_path):
    """With CAP_SYS_ADMIN alone root may not enter another user's closed folder."""
    if os.geteuid() != 0:
        pytest.skip("only root may give a folder away")
    home = tmp_path / "ada"
    home.mkdir(mode=0o700)
    python = home / "python"
    python.write_text("")
    python.chmod(0o755)
    assert unit.closed([python]) is None
    os.chown(home, 12345, 12345)
    assert unit.closed([python]) == f"{home} is closed to it (mode 0700, uid 12345)"
    home.chmod(0o755)
    assert unit.closed([python]) is None


def test_where_python_itself_lies_counts_too():
    python, folders = unit.here()
    assert python.samefile(sys.executable)
    assert {Path(sys.prefix), Path(sys.base_prefix), python.resolve().parent} <= set(folders)


def test_print_unit_prints_it_and_starts_nothing(capsys):
    python, folders = unit.here()
    with pytest.raises(SystemExit) as ended:
        main(["daemon", "--print-unit"])
    said = capsys.readouterr()
    if any(path.is_relative_to("/tmp") for path in (python, *folders)):  # where these tests may lie
        assert (ended.value.code, said.out) == (2, "")
        assert "a temporary folder that a service does not see" in said.err
    else:
        assert ended.value.code == 0
        assert said.out == unit.made_for(python, folders)


def test_print_unit_goes_alone(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["daemon", "--print-unit", "--socket", "/run/x.sock"])
    assert ended.value.code == 2
    assert "--print-unit goes with no other flag, not with --socket" in capsys.readouterr().err
