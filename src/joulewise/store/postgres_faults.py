"""What PostgreSQL, psycopg and SQLAlchemy say when something is wrong, in our words: what happened and the way out.

Passwords are shown to nobody: not out of the URL, and not out of what a driver quotes.
"""

from __future__ import annotations

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from joulewise.core.errors import BadSpec, NotKept

_SECRET = ("password", "sslpassword")

# By SQLSTATE, or its class (two letters): https://www.postgresql.org/docs/current/errcodes-appendix.html
_WAYS = {
    "28": "check the user and the password in the URL (or PGPASSWORD, ~/.pgpass)",
    "3D000": "make it with 'createdb', or name another database in the URL",
    "42501": "let an owner run 'CREATE SCHEMA joulewise AUTHORIZATION' for this user, or grant it the rights on it",
    "25006": "it takes no writes (a standby, or set read only); name the primary in the URL",
    "53100": "make room on the server's disk",
    "53300": "it has no connection left; raise max_connections, or run fewer servers",
    "53": "the server has run out of something; see its log",
    "55P03": "another writer holds this stream's lock; see pg_stat_activity",
    "57P03": "it is starting or stopping; try again",
    "57": "it was stopped or told to drop us; try again",
    "XX001": "its data are damaged; restore a backup",
    "XX002": "an index is damaged; run REINDEX",
}
# Before a session exists, libpq gives no SQLSTATE, only words.
_WORDS = {
    "authentication failed": _WAYS["28"],
    "no password supplied": _WAYS["28"],
    'role "': _WAYS["28"],
    'database "': _WAYS["3D000"],
    "too many clients": _WAYS["53300"],
    "starting up": _WAYS["57P03"],
    "shutting down": _WAYS["57P03"],
}
_NOT_THERE = "see that the server runs and that host and port in the URL are right"


class ConnectionLost(NotKept):
    """The connection broke in the middle; what was last asked for may or may not have been done."""


class TablesGone(NotKept):
    """Our tables, seen before, are not there."""


def parsed(url: str) -> tuple[URL, str]:
    """``url`` for psycopg, and as it may be shown. BadSpec, with the way out, where it cannot be understood."""
    form = "give postgresql://USER:PASSWORD@HOST:PORT/DATABASE, with %40 for @ and %2F for / in a password"
    try:
        found = make_url(url).set(drivername="postgresql+psycopg")
    except (ArgumentError, ValueError):
        raise BadSpec(f"not the URL of a PostgreSQL database; {form}") from None
    if not found.database:
        raise BadSpec(f"the URL of a PostgreSQL database names none; {form}")
    host = {key: value for key, value in found.query.items() if key == "host"}
    shown = found.set(drivername="postgresql", query=host)
    return found, shown.render_as_string(hide_password=True)


def told(error: Exception, name: str, url: URL, *, lost: bool) -> NotKept:
    """``error`` as what we raise, in one line, without a password."""
    fault = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    code = getattr(fault, "sqlstate", None) or ""
    words = " ".join(str(fault).split("\n", 1)[0].split())
    for secret in (url.password, *(url.query.get(key) for key in _SECRET)):
        if secret and isinstance(secret, str):
            words = words.replace(secret, "***")
    message = f"{name}: {words}; {_way_out(code, words)}"
    if code in ("42P01", "3F000"):
        return TablesGone(message)
    return ConnectionLost(message) if lost else NotKept(message)


def _way_out(code: str, words: str) -> str:
    for known in (code, code[:2]):
        if known in _WAYS:
            return _WAYS[known]
    if code:
        return "see the server's log"
    return next((way for word, way in _WORDS.items() if word in words), _NOT_THERE)
