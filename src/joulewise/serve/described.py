"""``/docs``: the API described for people, made out of the same document that programs read at ``/openapi.json``.

One page of plain HTML with its style in it: nothing is loaded from anywhere, no program runs, and the browser is told
so, so that it works on a machine without a network. What it is not: a place to try requests from; ``curl`` is one.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from html import escape
from typing import Any

from fastapi import FastAPI, Response

from joulewise.core.version import VERSION
from joulewise.report.style import STYLE

# ruff: noqa: E501 (a rule of a style sheet is a line)
_STYLE = (
    STYLE
    + """
details { background: var(--card); border: 1px solid var(--rule); border-radius: 8px; padding: .45rem .85rem; margin: .4rem 0; }
details[open] { padding-bottom: .8rem; } summary { cursor: pointer; } summary code { font-weight: 600; margin-right: .5rem; }
summary b { display: inline-block; min-width: 4.2rem; font-size: .84rem; color: var(--power); } b.writes { color: var(--clock); }
h3 { font-size: .95rem; margin: 1.4rem 0 .3rem; } h4 { font-size: .87rem; margin: .9rem 0 .2rem; color: var(--quiet); }
pre { background: var(--paper); border: 1px solid var(--grid); border-radius: 6px; padding: .5rem .7rem; overflow-x: auto; font-size: .84rem; }
a { color: var(--power); } p { margin: .4rem 0; } :target { outline: 2px solid var(--power); outline-offset: 4px; }
"""
)
POLICY = (
    f"default-src 'none'; style-src 'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""What the page may load: nothing but the server's icon; its one style by what is in it."""
_METHODS = ("get", "put", "post", "patch", "delete")
_MARKS = ((r"``(.+?)``", r"<code>\1</code>"), (r"`(.+?)`", r"<code>\1</code>"), (r"\*\*(.+?)\*\*", r"<b>\1</b>"))


def made_app(title: str, about: str, **more: Any) -> FastAPI:
    """An app without routes that describes itself at ``/docs``, and for programs at ``/openapi.json``; FastAPI's own
    pages would load programs from elsewhere. The page is made when it is first asked for."""
    version = VERSION
    more |= {"docs_url": None, "redoc_url": None, "redirect_slashes": False}
    app = FastAPI(title=title, description=about, version=version, **more)
    headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache"}

    @cache
    def made() -> bytes:
        return page(app.openapi()).encode()

    @app.get("/docs", include_in_schema=False)
    def docs() -> Response:
        return Response(made(), media_type="text/html; charset=utf-8", headers=headers)

    return app


def page(document: Mapping[str, Any]) -> str:
    """An OpenAPI document as HTML: routes by their tags, then the shapes that they speak of."""
    about = document["info"]
    shapes = document.get("components", {}).get("schemas", {})
    title = f"{about['title']} {about['version']}: its API"
    parts = [f"<h1>{escape(title)}</h1>", _prose(about.get("description", "")), _HOW]
    for tag, routes in _by_tag(document["paths"]).items():
        parts.append(f"<h2>{escape(tag.capitalize())}</h2>")
        parts += [_route(path, method, route) for path, method, route in routes]
    parts.append("<h2>Shapes</h2>")
    parts += [_named_shape(name, shape) for name, shape in sorted(shapes.items())]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(parts)
        + "\n</main>\n</body>\n</html>\n"
    )


_HOW = (
    '<p class="small">For programs: <a href="/openapi.json">openapi.json</a>. Where a token is needed: '
    "<code>curl -H 'Authorization: Bearer TOKEN' http://…</code></p>"
)


def _by_tag(paths: Mapping[str, Any]) -> dict[str, list[tuple[str, str, Mapping[str, Any]]]]:
    found: dict[str, list[tuple[str, str, Mapping[str, Any]]]] = {}
    for path, routes in paths.items():
        for method in _METHODS:
            if method in routes:
                tag = next(iter(routes[method].get("tags", ())), "more")
                found.setdefault(tag, []).append((path, method, routes[method]))
    return found


def _route(path: str, method: str, route: Mapping[str, Any]) -> str:
    kind = ' class="writes"' if method != "get" else ""
    body = route.get("requestBody", {}).get("content", {})
    parts = [
        f"<summary><b{kind}>{method.upper()}</b><code>{escape(path)}</code> {escape(route.get('summary', ''))}</summary>",
        _prose(route.get("description", "")),
        _table("Parameters", [_parameter(each) for each in route.get("parameters", ())]),
        *(
            f"<h4>Body</h4><p>{_shape(each.get('schema', {}))}, as <code>{escape(kind)}</code></p>"
            for kind, each in body.items()
        ),
        _table("Answers", [_answer(status, each) for status, each in route.get("responses", {}).items()]),
    ]
    return f"<details>{''.join(parts)}</details>"


def _parameter(each: Mapping[str, Any]) -> tuple[str, str, str]:
    where = "" if each.get("required") else f", {_default(each.get('schema', {}))}"
    return each["name"], f"{_shape(each.get('schema', {}))}{where}", each.get("description", "")


def _answer(status: str, each: Mapping[str, Any]) -> tuple[str, str, str]:
    kinds = (
        _shape(content["schema"]) if content.get("schema") else f"<code>{escape(kind)}</code>"
        for kind, content in each.get("content", {}).items()
    )
    return status, ", ".join(kinds), each.get("description", "")


def _named_shape(name: str, shape: Mapping[str, Any]) -> str:
    needed = shape.get("required", ())
    rows = [
        (field, _shape(each) + ("" if field in needed else f", {_default(each)}"), each.get("description", ""))
        for field, each in shape.get("properties", {}).items()
    ]
    example = next(iter(shape.get("examples", ())), None)
    parts = [
        f"<summary><code>{escape(name)}</code></summary>{_prose(shape.get('description', ''))}",
        _table("Fields", rows) if rows else f"<p>{_shape(shape)}</p>",
        "" if example is None else f"<h4>Example</h4><pre>{escape(json.dumps(example, indent=2))}</pre>",
    ]
    return f'<details id="{escape(_anchor(name))}">{"".join(parts)}</details>'


def _table(title: str, rows: list[tuple[str, str, str]]) -> str:
    """``rows``: a name, a shape as HTML, words."""
    if not rows:
        return ""
    made = (
        f"<tr><td><code>{escape(name)}</code></td><td>{shape}</td><td>{_inline(words)}</td></tr>"
        for name, shape, words in rows
    )
    return f'<h4>{title}</h4><div class="wide"><table><tbody>{"".join(made)}</tbody></table></div>'


def _shape(schema: Mapping[str, Any]) -> str:
    """What a value is, in words, as HTML; a shape that has a name leads to it."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f'<a href="#{escape(_anchor(name))}">{escape(name)}</a>'
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            return " or ".join(_shape(each) for each in schema[several])
    if "enum" in schema or "const" in schema:
        return " or ".join(f"<code>{escape(str(each))}</code>" for each in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type")
    if kind == "array":
        many = schema.get("prefixItems")
        return f"list of {_shape(schema.get('items', {}))}" if many is None else f"[{', '.join(map(_shape, many))}]"
    if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return f"object of {_shape(schema['additionalProperties'])}"
    limits = " ".join(_limits(schema))
    return escape(f"{kind or 'anything'}{f' ({limits})' if limits else ''}")


def _limits(schema: Mapping[str, Any]) -> Iterator[str]:
    for key, sign in (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<")):
        if key in schema:
            yield f"{sign} {schema[key]:g}"
    if "maxLength" in schema:
        yield f"up to {schema['maxLength']} letters"
    if "pattern" in schema:
        yield f"like {schema['pattern']}"


def _default(schema: Mapping[str, Any]) -> str:
    if schema.get("default") in (None, "", [], {}):
        return "may be left out"
    return f"<code>{escape(json.dumps(schema['default']))}</code> if left out"


def _anchor(name: str) -> str:
    return f"shape-{name}"


def _prose(text: str) -> str:
    """Paragraphs, with the few signs of Markdown that our own words use."""
    return "".join(f"<p>{_inline(each)}</p>" for each in re.split(r"\n\s*\n", text.strip()) if each)


def _inline(text: str) -> str:
    made = escape(text, quote=False)
    for mark, element in _MARKS:
        made = re.sub(mark, element, made, flags=re.DOTALL)
    return made
