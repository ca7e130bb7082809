"""What a person sees who asks for help: each page on one screen, with examples that can be copied."""

import io
import re
import shlex
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import cache
from itertools import takewhile
from typing import Annotated

import pytest
import typer

from joulewise.cli import VERBS, help, main
from joulewise.cli.help import ReadableCommand, VerbFamily

SCREEN = {100: 50, 80: 55}
"""Lines that a page may have, by the columns of the terminal."""


def pages() -> Iterator[tuple[str, ...]]:
    """Every verb, and every verb of a verb."""
    yield ()
    for name, verb in VERBS.items():
        yield (name,)
        yield from ((name, below) for below in getattr(verb.load(name), "commands", ()))


PAGES = list(pages())


@cache
def shown(words: tuple[str, ...], columns: int) -> list[str]:
    with pytest.MonkeyPatch.context() as environ, redirect_stdout(io.StringIO()) as page:
        environ.setenv("COLUMNS", str(columns))
        environ.setenv("NO_COLOR", "1")
        with pytest.raises(SystemExit) as ended:
            main([*words, "--help"])
    assert ended.value.code == 0
    return page.getvalue().rstrip("\n").splitlines()


def commands(lines: list[str]) -> list[list[str]]:
    """The commands of ours that a page shows, as a shell would split them."""
    text = "\n".join(line for line in lines if line.startswith("  ")).replace("\\\n", " ")
    return [split(line) for line in text.splitlines() if line.startswith("  joulewise ")]


def split(line: str) -> list[str]:
    words = shlex.shlex(re.sub(r"\$\(.*?\)", "here", line), posix=True, punctuation_chars="|>&")
    words.whitespace_split = True
    return list(takewhile(lambda word: word not in ("|", ">", "&"), words))


@pytest.mark.parametrize("columns", SCREEN)
@pytest.mark.parametrize("words", PAGES, ids=" ".join)
def test_every_page_fits_on_a_screen_and_no_line_is_broken_by_the_terminal(words, columns):
    lines = shown(words, columns)
    assert len(lines) <= SCREEN[columns]
    assert [line for line in lines if len(line) > columns] == []


@pytest.mark.parametrize("words", PAGES, ids=" ".join)
def test_every_page_says_first_what_it_is_for_and_has_an_example_of_that_verb(words):
    lines = shown(words, 100)
    path = " ".join(("joulewise", *words))
    assert lines[0].startswith(f"Usage: {path} [OPTIONS]")
    assert lines[2][0].isupper()
    assert [line for line in lines if line.startswith(f"  {path}")]


@pytest.mark.parametrize("words", PAGES, ids=" ".join)
def test_every_example_is_a_command_that_there_is_with_flags_that_it_has(words):
    for example in commands(shown(words, 100)):
        rest = example[1:]
        command = VERBS[rest[0]].load(rest[0])
        rest = rest[1:]
        if rest and rest[0] in getattr(command, "commands", ()):
            command, rest = command.commands[rest[0]], rest[1:]
        # As the real parser reads it: an unknown flag, a missing one or a surplus word raises.
        command.make_context("joulewise", rest).close()


def page_of(function, monkeypatch, **settings) -> str:
    app = typer.Typer(add_completion=False)
    app.command("verb", cls=ReadableCommand, **settings)(function)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("NO_COLOR", "1")
    with redirect_stdout(io.StringIO()) as page, pytest.raises(SystemExit):
        app(["--help"], prog_name="joulewise verb")
    return page.getvalue()


def test_what_must_be_given_comes_first_and_flags_have_no_type(monkeypatch):
    def verb(
        name: Annotated[str, typer.Argument(help="Its name.")],
        must: Annotated[int, typer.Option(metavar="N", help="Cannot do without.")],
        loud: Annotated[bool, typer.Option("--loud", help="Say more.")] = False,
        often: Annotated[float, typer.Option(metavar="HZ", help="How often.")] = 2.0,
        tidy: Annotated[bool, typer.Option(help="Clean up.")] = True,
        rare: Annotated[str | None, typer.Option(help="Seldom.", rich_help_panel="Rarely")] = None,
        secret: Annotated[bool, typer.Option("--secret", hidden=True)] = False,
    ) -> None:
        """Do it."""

    assert page_of(verb, monkeypatch) == (
        "Usage: joulewise verb [OPTIONS] NAME\n\nDo it.\n\n"
        "Required\n  NAME         Its name.\n  --must N     Cannot do without.\n\n"
        "Options\n  --loud       Say more.\n  --often HZ   How often. [default: 2]\n"
        "  --[no-]tidy  Clean up. [default: yes]\n\n"
        "Rarely\n  --rare RARE  Seldom.\n\n"
    )


def test_prose_is_filled_and_what_is_indented_stays_as_it_is(monkeypatch):
    def verb() -> None:
        """Do it.

        Words that go on for
        longer than a line would be, in brackets [bold]too[/bold], if it were wide.

          a,b
          1,2

          joulewise one
          joulewise two

        In a prolog:

          joulewise three
        """

    assert page_of(verb, monkeypatch) == (
        "Usage: joulewise verb [OPTIONS]\n\nDo it.\n\n"
        "Words that go on for longer than a line would be, in\nbrackets [bold]too[/bold], if it were wide.\n\n"
        "  a,b\n  1,2\n\nExamples\n  joulewise one\n  joulewise two\n\nIn a prolog:\n\n  joulewise three\n\n\n"
    )


def test_a_command_of_somebodys_stands_behind_two_dashes(monkeypatch):
    def verb(command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="It.")]) -> None:
        """Do it."""

    settings = {"context_settings": {"allow_interspersed_args": False}}
    assert page_of(verb, monkeypatch, **settings) == "Usage: joulewise verb [OPTIONS] -- COMMAND ...\n\nDo it.\n\n\n"


def test_a_long_name_has_a_line_of_its_own(monkeypatch):
    def verb(long: Annotated[str, typer.Option("--" + "long-" * 6 + "flag", metavar="X", help="Says.")] = "") -> None:
        """Do it."""

    shows = page_of(verb, monkeypatch).splitlines()
    assert shows[5:] == ["  --long-long-long-long-long-long-flag X", " " * (4 + help._NAMES) + "Says.", ""]


def test_a_family_without_a_verb_shows_its_help_and_its_verbs(monkeypatch):
    family = VerbFamily("Many things.\n\n  joulewise many one")
    family.command("one")(lambda: None)
    family.command("two", help="Second.\n\nMore.")(lambda: None)
    monkeypatch.setenv("NO_COLOR", "1")
    with redirect_stdout(io.StringIO()) as page, pytest.raises(SystemExit):
        family([], prog_name="joulewise many")
    assert page.getvalue() == (
        "Usage: joulewise many [OPTIONS] VERB\n\nMany things.\n\nExample\n  joulewise many one\n\n"
        "Verbs\n  one\n  two  Second.\n\n'joulewise many VERB --help' tells more.\n"
    )
