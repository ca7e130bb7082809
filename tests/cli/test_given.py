"""What the command-line library would take in silence: an option given twice, and ``--`` for a value."""

import pytest

from joulewise.cli import main


def refused(*args: str, capsys) -> str:
    with pytest.raises(SystemExit) as ended:
        main(list(args))
    shown = capsys.readouterr()
    assert (ended.value.code, shown.out, shown.err.count("\n")) == (2, "", 1)
    return shown.err.strip().removeprefix("joulewise: ")


@pytest.mark.parametrize("verb", [["run"], ["top"], ["recur", "run", "--job", "x"], ["plan", "check", "x.json"]])
def test_gpus_that_are_named_apart_are_to_be_named_together(verb, capsys):
    said = refused(*verb, "--gpu", "nvml:0", "--gpu", "nvml:2-3", capsys=capsys)
    assert said == "--gpu was given twice (nvml:0, nvml:2-3); write them together: --gpu nvml:0,2-3"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["run", "--gpu", "sim:h200", "--gpu=replay:x", "--", "true"], "(sim:h200, replay:x); give it once"),
        (["top", "--gpu", "replay:a", "--gpu", "replay:b"], "(replay:a, replay:b); give it once"),
        (["history", "-n", "1", "-n", "2"], "-n was given twice (1, 2); give it once"),
        (["serve", "--port", "1", "--port", "2", "--port", "3"], "--port was given 3 times (1, 2, 3); give it once"),
        (["report", "--compare", "a", "b", "--compare", "c", "d"], "--compare was given twice (a b, c d); give it"),
        (["report", "--png", "a.png", "--plot", "b.png"], "--plot was given twice (a.png, b.png)"),
        (
            ["history", "--database", "pg://u:p@ss@h/db?password=hunter2", "--database", "x"],
            "(pg://***@h/db?password=***,",
        ),
        (["verify", "x", "--database", "postgresql://me:secret@h/x", "--journal", "y"], "(postgresql://***@h/x, y)"),
        (["run", "--json", "x" * 500, "--json", "y", "--", "true"], f"({'x' * 60}…, y)"),
    ],
)
def test_an_option_that_is_given_twice_is_refused_with_both_values(args, says, capsys):
    assert says in refused(*args, capsys=capsys)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (
            ["run", "--json", "--", "sleep", "0"],
            "--json takes FILE, and what follows it is '--'; write '--json FILE -- …'",
        ),
        (["run", "--set", "--", "true"], "--set takes KNOB=VALUE, and what follows it is '--'"),
        (["recur", "run", "--job", "--", "true"], "--job takes "),
    ],
)
def test_the_dashes_before_a_command_are_nobodys_value(args, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert says in refused(*args, capsys=capsys)
    assert list(tmp_path.iterdir()) == []


def test_what_may_be_repeated_may_be_and_whoever_asks_for_help_gets_it(capsys):
    said = refused("run", "--set", "sm_mhz=1", "--set", "sm_mhz=2", "--tune", "--tune", "--", "true", capsys=capsys)
    assert "was given twice" not in said
    with pytest.raises(SystemExit) as ended:
        main(["run", "--gpu", "a", "--gpu", "b", "--help"])
    assert ended.value.code == 0


def test_what_stands_behind_the_dashes_is_the_commands_own(capsys):
    said = refused("run", "--gpu", "nowhere:0", "--", "echo", "--gpu", "a", "--gpu", "b", "--json", "--", capsys=capsys)
    assert "nowhere:0" in said
