"""Functions of ours called in scripts that know nothing of us; the function is one of the tests' own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from joulewise.core import at_import

IMPORTED = "import wanted.part; print('trained')"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory with a module to wait for, and a module with what is to be called."""
    (tmp_path / "wanted").mkdir()
    (tmp_path / "wanted" / "__init__.py").write_text("")
    (tmp_path / "wanted" / "part.py").write_text("ready = True")
    (tmp_path / "called.py").write_text(
        "def say(module): print('called with', module.__name__, module.ready)\n"
        "def say_more(module): print('called again')\n"
        "def fail(module): raise RuntimeError('ours')\n"
    )
    return tmp_path


def script(
    code: str, *path: Path, calls: tuple[str, ...] = ("called:say",), flags: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run ``code`` with ``path`` on PYTHONPATH and ``calls`` waiting for wanted.part."""
    environ = {**os.environ, "PYTHONPATH": ":".join(map(str, path))}
    for call in calls:
        environ = at_import.environment(environ, "wanted.part", call)
    return subprocess.run(
        [sys.executable, *flags, "-c", textwrap.dedent(code)],
        env=environ, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_the_function_is_called_with_the_module_once_that_is_whole(home: Path) -> None:
    done = script(IMPORTED + "; import wanted.part", home)
    assert (done.stdout, done.stderr) == ("called with wanted.part True\ntrained\n", "")


def test_several_are_called_in_the_order_in_which_they_were_asked_for_and_each_once(home: Path) -> None:
    done = script(IMPORTED, home, calls=("called:say_more", "called:say", "called:say_more"))
    assert done.stdout.splitlines() == ["called again", "called with wanted.part True", "trained"]


def test_the_script_sees_nothing_of_it(home: Path) -> None:
    code = """
        import sys, wanted.part
        print(any("at_import" in entry for entry in sys.path))
        print(any(type(finder).__module__ == "sitecustomize" for finder in sys.meta_path))
        print(wanted.part.__spec__.loader.exec_module.__qualname__)
        try:
            import sitecustomize
            print("at_import" in sitecustomize.__file__)
        except ImportError:
            print(False)
    """
    done = script(code, home)
    assert done.stdout.split("\n")[1:] == ["False", "False", "_LoaderBasics.exec_module", "False", ""]


def test_a_sitecustomize_that_was_there_before_runs_as_ever(home: Path) -> None:
    (home / "sitecustomize.py").write_text("print('theirs')\nname = 'mine'\n")
    done = script(IMPORTED + "; import sitecustomize; print(sitecustomize.name)", home)
    assert done.stdout.splitlines() == ["theirs", "called with wanted.part True", "trained", "mine"]


def test_a_sitecustomize_that_fails_fails_as_ever(home: Path) -> None:
    (home / "sitecustomize.py").write_text("import nothing_of_that_name\n")
    done = script(IMPORTED, home)
    assert done.returncode == 0
    assert "nothing_of_that_name" in done.stderr
    assert done.stdout == "called with wanted.part True\ntrained\n"


def test_a_python_that_ignores_its_environment_and_a_script_without_the_module_run_as_ever(home: Path) -> None:
    code = f"import sys; sys.path.insert(0, {str(home)!r}); {IMPORTED}"
    for flag in ("-E", "-S", "-I"):
        assert script(code, flags=(flag,)).stdout == "trained\n"
    done = script("print('hello')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello\n", "")


@pytest.mark.parametrize("call", ["called:fail", "called:nothing", "no_such_module:say", "nonsense"])
def test_trouble_of_ours_is_kept_from_the_script_and_from_the_next_in_line(home: Path, call: str) -> None:
    done = script(IMPORTED, home, calls=(call, "called:say_more"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "called again\ntrained\n", "")


def test_a_module_that_is_not_there_is_missed_as_ever(home: Path) -> None:
    (home / "wanted" / "part.py").unlink()
    done = script(IMPORTED, home)
    assert done.stderr.endswith("ModuleNotFoundError: No module named 'wanted.part'\n")
    assert done.stdout == ""


def test_a_path_of_the_users_own_stays_behind_ours() -> None:
    asked = at_import.environment({"PYTHONPATH": ":/theirs", "HOME": "/h"}, "a", "b:c")
    assert asked == {"PYTHONPATH": f"{at_import.SITE}::/theirs", "HOME": "/h", "JOULEWISE_AT_IMPORT": "a=b:c"}
    assert at_import.environment({}, "a", "b:c")["PYTHONPATH"] == str(at_import.SITE)
