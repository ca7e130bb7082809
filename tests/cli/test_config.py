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


def test_what_is_typed_wins_over_files_and_so_does_the_environment(places, capsys, monkeypatch):
    put(places["user"], '[report]\ndatabase = "/in/a/file.db"\n')
    assert called("report") == 2
    assert "/in/a/file.db" in capsys.readouterr().err
    assert called("report", "--database", "/typed/x.db") == 2
    assert "/typed/x.db" in capsys.readouterr().err
    monkeypatch.setenv("JOULEWISE_DATABASE", "postgresql://127.0.0.1:1/in-the-environment")
    assert called("report") == 1
    assert "in-the-environment" in capsys.readouterr().err


def test_a_server_that_is_typed_is_not_refused_for_a_database_that_a_file_names(places, capsys):
    put(places["user"], '[recur.status]\ndatabase = "x.db"\n')
    assert called("recur", "status", "nightly", "--server", "http://127.0.0.1:1") == 1
    assert "http://127.0.0.1:1" in capsys.readouterr().err


def test_a_bound_in_a_file_is_for_runs_that_are_tuned(places, capsys):
    put(places["project"], '[run]\nmax_slowdown = "1%"\n[serve]\nkwh_price = 0.30\n[recur.run]\neta = 0.7\n')
    assert called("run", "--gpu", "sim:h200", "--no-keep", "--", "true") == 0
    capsys.readouterr()
    assert called("run", "--gpu", "sim:h200", "--no-keep", "--max-slowdown", "1%", "--", "true") == 2
    assert "add --tune" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        '[report]\ndatabase = "x.db"\n',
        '[cluster.status]\nserver = "http://evil.example"\n',
        '[serve]\nhost = "0.0.0.0"\n',
        '[estimate]\nheader = ["A: b"]\n',
        '[run]\nreport = "/home/me/.bashrc"\n',
    ],
)
def test_a_file_that_came_with_a_repository_does_not_say_where_things_are_kept_or_sent(places, capsys, text):
    put(places["pyproject"], text.replace("[", "[tool.joulewise.", 1))
    assert called("leases") == 2
    assert "a file in the current folder" in capsys.readouterr().err
    places["pyproject"].unlink()
    put(places["user"], text)
    assert config_files.read().values != {}


VIRTUAL = [
    (verb, spec, file)
    for verb in ("run", "recur.run", "top", "serve", "plan.check")
    for spec in ("sim:h200", "sim", "replay:saved.jsonl", " replay:saved.jsonl")
    for file in ("project", "pyproject")
]


def test_a_file_that_came_with_a_repository_does_not_put_virtual_gpus_in_the_place_of_real_ones(
    places, capsys, scenario
):
    shown = scenario("R38", "a repository's joulewise.toml names sim: or replay:", criterion="refused; one's own may")
    for verb, spec, file in VIRTUAL:
        prefix = "tool.joulewise." if file == "pyproject" else ""
        put(places[file], f'[{prefix}{verb}]\ngpu = "{spec}"\n')
        assert called("run", "--no-keep", "--", "touch", "ran") == 2
        said = capsys.readouterr().err
        assert f"{verb}.gpu in {places[file].name}" in said
        assert "may not put virtual or recorded GPUs in the place of real ones" in said
        assert said.count("\n") == 1
        assert not Path("ran").exists()

        places[file].unlink()
        put(places["user"], f'[{verb}]\ngpu = "{spec}"\n')
        assert effective(capsys)[f"{verb}.gpu"] == (spec, "config.toml")
        places["user"].unlink()
    shown.saw(f"{len(VIRTUAL)} files refused by the key's name, nothing run")


@pytest.mark.parametrize("verb", ["sim", "cluster.simulate", "cluster.explain"])
def test_a_repository_may_say_which_virtual_gpus_a_simulation_has(places, capsys, verb):
    put(places["project"], f'[{verb}]\ngpu = "sim:a100*4"\n')
    assert effective(capsys)[f"{verb}.gpu"] == ("sim:a100*4", "joulewise.toml")


def test_real_gpus_may_be_chosen_by_a_repository(places, capsys):
    put(places["project"], '[run]\ngpu = "nvml:0-1"\n')
    assert effective(capsys)["run.gpu"] == ("nvml:0-1", "joulewise.toml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[run]\njson = true\n", "a text or a number is wanted"),
        ("[run]\nplot = 2024-01-01\n", "a text or a number is wanted"),
        ("[run]\nlive = 'yes'\n", "true or false is wanted"),
        ("[run]\ngpu = ['sim:h200']\n", "one value is wanted"),
    ],
)
def test_a_value_that_could_not_be_typed_is_refused(places, capsys, text, said):
    put(places["user"], text)
    assert called("run", "--", "true") == 2
    shown = capsys.readouterr().err
    assert said in shown
    assert "config.toml" in shown


def test_one_value_of_an_option_that_takes_several_will_do(places, capsys):
    put(places["user"], '[run]\nset = "sm_mhz=1500"\n')
    assert called("run", "--gpu", "sim:h200", "--no-keep", "--", "true") == 0
    assert "1500" in capsys.readouterr().err


def test_what_is_no_plain_file_holds_up_nobody(places, capsys):
    os.mkfifo(places["project"])
    assert called("leases", "--socket", "/nowhere") in (0, 1)
    assert called("config") == 0
    assert "left out: it is no plain file" in capsys.readouterr().out


def test_a_user_without_a_home_is_no_fault(places, capsys, monkeypatch):
    monkeypatch.delenv("XDG_CONFIG_HOME")

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    assert called("model", "list") == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[history]\nrun = 3\n", "'run' in [history]"),
        ("[recur.history]\nserver_url = 'x'\n", "'server_url' in [recur.history]"),
        ("[histori]\nn = 3\n", "'histori'"),
        ("n = 3\n", "'n'"),
        ("[history]\nyes = true\n", "'yes' in [history]"),
        ("[history]\njson = true\n", "'json' in [history]"),  # it could not be taken back
        ("[history\n", "config.toml is no TOML"),
        ("[history]\nn = {a = 1}\n", "'n' in [history]"),
    ],
)
def test_a_key_that_no_verb_has_is_refused_by_its_name(places, capsys, text, said):
    put(places["user"], text)
    verb = ("recur", "history", "x") if "recur" in text else ("history",)
    assert called(*verb) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert said in shown.err
    assert called("config") == 2
    assert "config.toml" in capsys.readouterr().err


def test_a_verb_minds_its_own_table_alone(places, capsys):
    put(places["user"], "[serve]\nnothing = 1\n")
    assert called("history") == 0


def test_a_file_in_somebody_elses_folder_says_nothing_to_us(places, capsys, may_set):
    put(places["project"], "[history]\nn = 3\n")
    os.chown(places["project"], 12345, 12345)
    assert config_files.read().values == {}
    assert called("history") == 0
    assert capsys.readouterr().err == "joulewise: joulewise.toml is left out: it belongs to somebody else\n"
    assert called("config") == 0
    assert "left out: it belongs to somebody else" in capsys.readouterr().out


def test_one_file_can_be_named_and_none(places, monkeypatch, capsys):
    put(places["project"], "[history]\nn = 3\n")
    put(places["user"], "[history]\nn = 4\n")
    monkeypatch.setenv(config_files.VARIABLE, str(places["user"]))
    assert config_files.read().values == {"history": {"n": 4}}
    monkeypatch.setenv(config_files.VARIABLE, "")
    assert config_files.read().values == {}
    monkeypatch.setenv(config_files.VARIABLE, "/nowhere.toml")
    assert called("history") == 2
    assert "/nowhere.toml, which is not there" in capsys.readouterr().err


def test_no_secret_is_shown(places, monkeypatch, capsys):
    text = '[report]\ndatabase = "postgresql://u:geheim@h/d"\n[estimate]\nheader = ["Authorization: Bearer geheim"]\n'
    put(places["user"], text)
    monkeypatch.setenv("JOULEWISE_TOKEN", "jw_geheim")
    monkeypatch.setenv("JOULEWISE_DATABASE", "postgresql://u:p@geheim@h/d")
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


@pytest.mark.parametrize(
    ("table", "variable", "verb"),
    [
        ('[serve]\ntoken_file = "/nowhere/tokens"\n', "JOULEWISE_TOKEN", ["serve", "--port", "1"]),
        ('[estimate]\ntoken_file = "/nowhere/tokens"\n', "JOULEWISE_TOKEN", ["estimate", "--prometheus", "http://x"]),
    ],
)
def test_a_variable_that_a_verb_does_not_read_takes_no_default_from_it(
    places, capsys, monkeypatch, table, variable, verb
):
    put(places["user"], table)
    monkeypatch.setenv(variable, "a-token-for-something-else-entirely")
    assert called(*verb) != 0
    assert "/nowhere/tokens" in capsys.readouterr().err


KEPT_ELSEWHERE = '[recur.list]\nserver = "http://127.0.0.1:9"\ntoken_file = "/nowhere/token"\n'


def test_a_database_that_is_typed_or_in_the_environment_is_meant_and_not_a_files_server(places, capsys, monkeypatch):
    put(places["user"], KEPT_ELSEWHERE)
    assert called("recur", "list") != 0, "the file's server is not there"
    assert called("recur", "list", "--database", "x.db") == 0
    monkeypatch.setenv("JOULEWISE_DATABASE", "y.db")
    assert called("recur", "list") == 0
    assert called("recur", "list", "--server", "http://127.0.0.1:9") != 0


def test_a_default_token_file_can_be_taken_back(places, capsys):
    put(places["user"], '[serve]\ntoken_file = "/nowhere/tokens"\n')
    assert called("serve", "--no-auth", "--port", "70000") == 2
    said = capsys.readouterr().err
    assert "70000" in said
    assert "give one of them" not in said


@pytest.mark.parametrize(
    ("place", "text", "typed"),
    [
        ("pyproject", '[[tool.joulewise]]\nrun = "x"\n', ["doctor"]),
        ("pyproject", "# for tool.joulewise\ntool = 3\n", ["doctor"]),
        ("user", "[recur]\nrun = 3\n", ["recur", "run", "--job", "x", "--", "echo", "-h"]),
    ],
)
def test_what_is_no_table_is_said_in_one_line(places, capsys, place, text, typed):
    put(places[place], text)
    assert called(*typed) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "fault of joulewise" not in said


@pytest.mark.parametrize("named", ["joulewise.toml", "./joulewise.toml"])
def test_a_file_that_was_named_is_no_stranger_s_wherever_it_lies(places, capsys, monkeypatch, named):
    put(places["project"], '[serve]\ndatabase = "/data/runs.db"\n')
    monkeypatch.setenv(config_files.VARIABLE, named)
    assert effective(capsys) == {"serve.database": ("/data/runs.db", "joulewise.toml")}


def test_a_pyproject_that_was_named_has_its_table_read(places, capsys, monkeypatch):
    put(places["pyproject"], '[project]\nname = "x"\n[tool.joulewise.run]\nmax_slowdown = "1%"\n')
    monkeypatch.setenv(config_files.VARIABLE, str(places["pyproject"]))
    assert effective(capsys) == {"run.max_slowdown": ("1%", "pyproject.toml")}
