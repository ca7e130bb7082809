"""Command lines without their secrets: what the journal, the memory and the report keep of one.

Pure. Program, script and the names of arguments stay, so that a run is known again; a value whose name or shape says
that it is a key, a token or a password becomes ``***``. A secret under an innocent name in an innocent shape is not
found: such belongs in the environment or in a file, as everywhere that others can list processes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

MASK = "***"
_NAMED = frozenset({"secret", "secrets", "password", "passwd", "passphrase", "pwd", "credential", "credentials"})
"""Words that make a name a secret's wherever they stand in it."""
_LAST = frozenset({"key", "apikey", "token", "auth", "pass", "pat", "bearer", "authorization"})
"""Words that do so at its end: ``--api-key``, but not ``--key-dim``."""
_SHAPED = re.compile(
    r"(?:sk|pk|rk)[-_][\w-]{16,}|hf_\w{16,}|gh[pousr]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|xox[abpr]-[\w-]{10,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[\w-]{30,}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*|[0-9a-f]{40}|[0-9a-f]{64}"
)
"""Keys and tokens of common makers, and hexadecimal keys of the usual lengths."""
_IN_URL = re.compile(r"(?<=://)[^/\s]+@")  # up to the last @: a password may hold one
_NUMBER = re.compile(r"[-+]?\d{1,7}(\.\d*)?")
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")


def masked(command: Sequence[str]) -> list[str]:
    """``command`` with every value masked that looks like a secret; the program itself is kept."""
    kept: list[str] = []
    secret = False  # whether the word before was the name of one
    for place, word in enumerate(command):
        name, equals, value = word.partition("=")
        if secret and not _is_flag(word) and not _NUMBER.fullmatch(word):
            kept.append(MASK)
        elif place and equals and _is_secret(name) and not _NUMBER.fullmatch(value):
            kept.append(f"{_IN_URL.sub(f'{MASK}@', name)}={MASK}")
        else:
            kept.append(_IN_URL.sub(f"{MASK}@", _SHAPED.sub(MASK, word)) if place else word)
        secret = bool(place) and _is_flag(word) and not equals and _is_secret(word)
    return kept


def _is_flag(word: str) -> bool:
    return len(word) > 1 and word.startswith("-") and not _NUMBER.fullmatch(word)


def _is_secret(name: str) -> bool:
    words = [word.lower() for word in _WORD.findall(name)]
    return bool(words) and (words[-1] in _LAST or not _NAMED.isdisjoint(words))
