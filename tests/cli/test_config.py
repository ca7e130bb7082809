"""Defaults from files: the nearest wins, what is typed wins over all, and nothing that is wrong is passed over."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from joulewise.cli import config_files, main


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Where files are looked for; none is there yet."""
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    monkeypatch.delenv(config_files.VARIABLE)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    monkeypatch.setattr(config_files, "MACHINE", tmp_path / "etc" / "config.toml")
    monkeypatch.setenv("JOULEWISE_HOME", str(tmp_path / "home"))
    return {
        "machine": tmp_path / "etc" / "config.toml",
        "user": tmp_path / "user" / "joulewise" / "config.toml",
        "pyproject": project / "pyproject.toml",
        "project": project / "joulewise.toml",
    }


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def called(*args: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(args))
    return int(ended.value.code or 0)


def effective(capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[object, str]]:
    assert called("config", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["defaults"]
    return {row["key"]: (row["value"], Path(row["from"]).name) for row in rows}


def test_without_any_file_there_is_no_default_and_it_says_where_it_looked(places, capsys):
    assert called("config") == 0
    said = capsys.readouterr().out
    assert "no file sets a default\n" in said
    assert said.count("not there") == 4


def test_the_nearest_file_wins_key_by_key(places, capsys):
    put(places["machine"], '[run]\nmax_slowdown = "5%"\nlive = true\n[serve]\ncurrency = "EUR"\n')
    put(places["user"], '[run]\nmax_slowdown = "3%"\n')
    put(places["pyproject"], '[project]\nname = "joulewise-user"\n[tool.joulewise.run]\nmax_slowdown = "1%"\n')
    assert config_files.read().values["run"]["max_slowdown"] == "1%"
    put(places["project"], '[run]\nmax_slowdown = "0.5%"\n')
    assert config_files.read().values == {
        "run": {"max_slowdown": "0.5%", "live": True},
        "serve": {"currency": "EUR"},
    }
    assert effective(capsys) == {
        "run.max_slowdown": ("0.5%", "joulewise.toml"),
        "run.live": (True, "config.toml"),
        "serve.currency": ("EUR", "config.toml"),
    }


def test_what_is_typed_wins_over_files_and_so_does_the_environment(places, capsys):
    put(places["project"], "[history]\njson = true\n")
    assert called("history") == 0
    assert json.loads(capsys.readouterr().out) == []
    put(places["project"], "[model.list]\njson = true\n")
    assert called("model", "list") == 0
    json.loads(capsys.readouterr().out)
    put(places["project"], '[report]\ndatabase = "/nowhere/else.db"\n')
    assert called("report", "--database", "/typed/x.db") != 0
    said = capsys.readouterr().err
    assert "/nowhere/else.db" not in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[history]\njsn = true\n", "'jsn' in [history]"),
        ("[recur.history]\nserver_url = 'x'\n", "'server_url' in [recur.history]"),
        ("[histori]\njson = true\n", "'histori'"),
        ("json = true\n", "'json'"),
        ("[history]\nyes = true\n", "'yes' in [history]"),
        ("[history\n", "joulewise.toml is no TOML"),
        ("[history]\njson = {a = 1}\n", "'json' in [history]"),
    ],
)
def test_a_key_that_no_verb_has_is_refused_by_its_name(places, capsys, text, said):
    put(places["project"], text)
    verb = ("recur", "history", "x") if "recur" in text else ("history",)
    assert called(*verb) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert said in shown.err
    assert called("config") == 2
    assert "joulewise.toml" in capsys.readouterr().err


def test_a_verb_minds_its_own_table_alone(places, capsys):
    put(places["project"], "[serve]\nnothing = 1\n")
    assert called("history") == 0


def test_a_file_in_somebody_elses_folder_says_nothing_to_us(places, capsys, may_set):
    put(places["project"], "[history]\njson = true\n")
    os.chown(places["project"], 12345, 12345)
    assert config_files.read().values == {}
    assert called("config") == 0
    assert "left out: it belongs to somebody else" in capsys.readouterr().out


def test_one_file_can_be_named_and_none(places, monkeypatch, capsys):
    put(places["project"], "[history]\njson = true\n")
    put(places["user"], "[history]\nlearnt = true\n")
    monkeypatch.setenv(config_files.VARIABLE, str(places["user"]))
    assert config_files.read().values == {"history": {"learnt": True}}
    monkeypatch.setenv(config_files.VARIABLE, "")
    assert config_files.read().values == {}
    monkeypatch.setenv(config_files.VARIABLE, "/nowhere.toml")
    assert called("history") == 2
    assert "/nowhere.toml, which is not there" in capsys.readouterr().err


def test_no_secret_is_shown(places, monkeypatch, capsys):
    put(places["project"], '[report]\ndatabase = "postgresql://u:geheim@h/d"\n')
    monkeypatch.setenv("JOULEWISE_TOKEN", "jw_geheim")
    monkeypatch.setenv("JOULEWISE_DATABASE", "postgresql://u:geheim@h/d")
    assert called("config") == 0
    said = capsys.readouterr().out
    assert "geheim" not in said
    assert "JOULEWISE_TOKEN" in said


def test_help_needs_no_file_to_be_right(places, capsys):
    put(places["project"], "[history\n")
    for asked in (
        ["--help"],
        ["history", "--help"],
        ["recur", "history", "-h"],
        ["help", "history"],
        ["recur", "--help"],
    ):
        assert called(*asked) == 0, asked
