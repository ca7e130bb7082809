"""The documentation site is built from nothing, and whoever reads it without a network misses nothing."""

import html
import re
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml
from docs.make import __main__ as builder
from docs.make import api, commands

import joulewise
from joulewise.cli import VERBS

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.face


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("zensical", reason="Zensical is not installed (pip install 'joulewise[docs]')")
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (pip install 'joulewise[plot]')")
    return builder.make(tmp_path_factory.mktemp("out"))


@pytest.fixture(scope="module")
def texts(site):
    return {page: page.read_text("utf-8") for page in site.rglob("*.html") if page.name != "404.html"}


@pytest.mark.exhaustive
def test_every_page_of_the_repository_is_in_the_site(site):
    pages = {page.relative_to(ROOT / "docs").with_suffix("") for page in (ROOT / "docs").rglob("*.md")}
    built = {page.relative_to(site).with_suffix("") for page in site.rglob("*.html")}
    # a folder's README is its index
    assert {page.with_name("index") if page.name == "README" else page for page in pages} - built == set()


@pytest.mark.exhaustive
def test_every_link_and_picture_of_the_site_leads_somewhere(site, texts):
    ids = {page: set(re.findall(r'\bid="?([^\s">]+)', text)) for page, text in texts.items()}
    lost, seen = [], 0
    for page, text in texts.items():
        body = text.partition("<article")[2].partition("</article>")[0] or text
        for link in re.findall(r'\b(?:href|src)="?([^\s">]+)', body):
            to, _, heading = html.unescape(link).partition("#")
            if re.match(r"[a-z]+:", to):
                continue
            target = (page.parent / unquote(to)).resolve() if to else page
            seen += 1
            if not target.is_file() or (heading and target in ids and unquote(heading) not in ids[target]):
                lost.append(f"{page.relative_to(site)}: {link}")
    assert seen > 200
    assert lost == []


@pytest.mark.exhaustive
def test_the_site_asks_nobody_else_for_anything(texts):
    loaded = [
        tag
        for text in texts.values()
        for tag in re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", text)
        if re.search(r'\b(?:src|href)="?(?:https?:)?//', tag)
    ]
    assert loaded == []


@pytest.mark.exhaustive
def test_the_pictures_are_in_the_pages(site):
    for page, picture in (("index", "frontier.svg"), ("explanation/powerflow", "cluster.png")):
        text = (site / f"{page}.html").read_text("utf-8")
        assert re.search(rf'<img [^>]*src="?[^\s>"]*pictures/{picture}', text), page
        assert (site / "pictures" / picture).stat().st_size > 10_000


def test_the_menu_names_every_page_that_is_no_decision():
    menu = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"]
    named = {path.partition("#")[0] for path in _leaves(menu)}
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if not re.match(r"decisions/\d", page)} == named - {"commands.md", "api.md"}


def test_the_reference_of_the_command_line_has_every_verb_with_every_flag():
    page = commands.page()
    assert [verb for verb in VERBS if f"\n## {verb}\n" not in page] == []
    solve = page.partition("\n### plan solve\n")[2].partition("\n### ")[0]
    assert "| `--blocking-w` W | What a GPU draws while it waits to receive. (must be given) |" in solve
    for name, command in commands.verbs():
        about = re.search(rf"^#+ {name}\n(.*?)(?=^## |^### |\Z)", page, flags=re.MULTILINE | re.DOTALL)[1]
        assert [flag for flag in commands.flags(command) - {"--help"} if f"`{flag}`" not in about] == [], name


def test_the_reference_of_python_has_every_public_name_with_what_it_does():
    assert api.names() == set(joulewise.__all__) - {"__version__", "JoulewiseError"}
    page = api.page()
    assert "### Monitor\n\n```python\nfrom joulewise import Monitor\n" in page
    assert "### frameworks.huggingface.StepCallback\n" in page
    assert "├── NoReading" in page
    for name in api.names():
        about = re.search(rf"^### {name}\n(.*?)(?=^##)", page, flags=re.MULTILINE | re.DOTALL)[1]
        assert len(re.sub(r"```.*?```", "", about, flags=re.DOTALL).split()) > 10, name


def _leaves(menu):
    if isinstance(menu, str):
        return [menu]
    below = menu if isinstance(menu, list) else list(menu.values())
    return [leaf for each in below for leaf in _leaves(each)]
