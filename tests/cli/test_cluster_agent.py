"""The verb's own part: flags and files. What the agent does: tests/daemon/test_agent*.py."""

import pytest

from joulewise.cli import main


@pytest.fixture
def agent(capsys):
    """``agent(…)`` runs the verb: exit code and stderr."""

    def run(*flags: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(["cluster", "agent", "--node", "n1", "--server", "http://127.0.0.1:9", *flags])
        return int(ended.value.code or 0), capsys.readouterr().err

    return run


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--host-watts", "-5"], "--host-watts -5 is no power of a host"),
        (["--host-watts", "nan"], "is no power of a host"),
        (["--period", "0"], "--period 0 is not between 0.05 and 60 seconds"),
        (["--period", "1000"], "--period 1000 is not between"),
    ],
)
def test_flags_that_make_no_sense_are_refused_in_one_line(agent, tmp_path, flags, said):
    (tmp_path / "token").write_text("t" * 40)
    code, err = agent("--token-file", str(tmp_path / "token"), *flags)
    assert code == 2
    assert said in err


def test_a_token_that_is_not_there_is_refused_with_the_way_out(agent, tmp_path):
    code, err = agent("--token-file", str(tmp_path / "none"))
    assert code == 2
    assert "cannot be read: no such file" in err
    assert "makes one" in err


def test_an_empty_token_is_refused(agent, tmp_path):
    (tmp_path / "token").write_text("\n")
    code, err = agent("--token-file", str(tmp_path / "token"))
    assert (code, "is empty" in err) == (2, True)
