"""How ``joulewise estimate`` shows a Prometheus who asks: a token, a name with a password, or headers.

Secrets come from files: what stands on a command line, everybody on that machine can read.
"""

from __future__ import annotations

import base64
import re
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path

from joulewise.core import input_files
from joulewise.core.errors import BadSpec

_HEADER = re.compile(r"([A-Za-z0-9!#$%&'*+.^_`|~-]+):\s*([^\r\n]*)")
_AUTHORIZATION = "Authorization"


def headers(
    written: Sequence[str],
    *,
    token_file: Path | None = None,
    user: str | None = None,
    password_file: Path | None = None,
) -> dict[str, str]:
    """What is sent with every question. BadSpec for what is no header, for a file that cannot be read, and for two
    ways to say who asks."""
    found: dict[str, str] = {}
    for text in written:
        parts = _HEADER.fullmatch(text.strip())
        if parts is None or not parts[2].isascii():
            raise BadSpec("a --header is written 'NAME: VALUE', in plain letters")
        found[parts[1]] = parts[2].strip()
    ways = {
        "--token-file": token_file is not None,
        "--user": user is not None,
        "--header Authorization": any(name.lower() == _AUTHORIZATION.lower() for name in found),
    }
    said = [flag for flag, given in ways.items() if given]
    if len(said) > 1:
        raise BadSpec(f"{' and '.join(said)} both say who asks, and one would replace the other; give one of them")
    if (user is None) != (password_file is None):
        raise BadSpec("--user and --password-file go together; give both, or --token-file for a token")
    if token_file is not None:
        token = _secret("--token-file", token_file).strip()
        if not token.isascii() or not token.isprintable() or " " in token:
            raise BadSpec(f"--token-file {token_file} holds no token; it is to be one word in plain letters")
        found[_AUTHORIZATION] = f"Bearer {token}"
    if user is not None and password_file is not None:
        if ":" in user or not user.isprintable():
            raise BadSpec(f"--user {user!r} is no name; it has no colon, and its password is in --password-file")
        pair = f"{user}:{_secret('--password-file', password_file)}"
        found[_AUTHORIZATION] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    return found


def in_the_clear(url: str, sent: Mapping[str, str]) -> str | None:
    """What to say where a secret goes to another machine without encryption; None where it does not."""
    from joulewise.serve.tokens import is_loopback

    parts = urllib.parse.urlsplit(url)
    secret = any(name.lower() == _AUTHORIZATION.lower() for name in sent)
    if not secret or parts.scheme != "http" or is_loopback(parts.hostname or ""):
        return None
    return f"{parts.hostname} is asked over http: whoever is on the way can read the secret; give an https address"


def _secret(flag: str, file: Path) -> str:
    """The first and only line of a file."""
    try:
        text = input_files.read_text(file, input_files.MIB).strip("\r\n")
    except BadSpec as error:
        raise BadSpec(f"{flag} {error}") from None
    if not text.strip() or not text.isprintable():
        raise BadSpec(f"{flag} {file} holds no secret; it is to be one line of text")
    return text
