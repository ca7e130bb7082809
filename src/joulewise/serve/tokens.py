"""Who may ask and tell: bearers of tokens, of which the server's file keeps only the hashes, and users of this machine.

A token is 32 random bytes, so that its plain SHA-256 cannot be guessed back. Whoever may write may do everything; a
node's agent may report and be told what to hold, and neither read the rest nor change it. Its token bears the node's
name and speaks for that node alone; one that bears ``*`` speaks for all. A file of tokens has one a line,
``HASH SCOPE NAME``; empty lines and lines that begin with ``#`` are for people.

Who comes through a Unix socket needs no token: the kernel says who they are (``peer``). ``Guard`` decides, and names
the caller, for the journal. A guard that is told nothing else lets nobody in.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from joulewise.core.caller import Caller
from joulewise.core.errors import BadSpec, NotKept
from joulewise.serve.peer import Peer

FILE = "tokens"
EVERY_NODE = "*"
"""The name of an agents' token that speaks for any node."""
_LINE = re.compile(r"(?P<hash>[0-9a-f]{64})\s+(?P<scope>read|write|agent)(?:\s+(?P<name>\S.*))?")
_BEARER = re.compile(r"(?i:bearer)\s+(?P<token>[\x21-\x7e]{1,200})\s*")


class Scope(StrEnum):
    """What a token is good for."""

    READ = "read"
    WRITE = "write"
    AGENT = "agent"


_GOOD_FOR = {Scope.READ: {Scope.READ}, Scope.WRITE: set(Scope), Scope.AGENT: {Scope.AGENT}}
"""What a token of a scope may be used for."""


@dataclass(frozen=True, slots=True)
class Token:
    """What is kept of a token."""

    hash: str
    scope: Scope
    name: str = ""


def make(scope: Scope, name: str = "") -> tuple[str, Token]:
    """A new token: what its owner gets, once, and what is kept of it. BadSpec for an agent's without a node's name."""
    name = " ".join(name.split())
    if scope is Scope.AGENT and (not name or " " in name):
        raise BadSpec(
            f"an agent's token speaks for the node that it is named after, not for {name!r}; name one: --name n1, or "
            f"--name '{EVERY_NODE}' for all"
        )
    secret = f"jw_{secrets.token_urlsafe(32)}"
    return secret, Token(_hash(secret), scope, name)


def read(path: Path) -> tuple[Token, ...]:
    """The tokens of a file. BadSpec, naming the line, for one that holds anything else; NotKept if it is not there."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise NotKept(_cannot(path, error)) from error
    except UnicodeDecodeError as error:
        raise BadSpec(f"{path} is no file of tokens; make one with 'joulewise serve token'") from error
    found = []
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        match = _LINE.fullmatch(text)
        if match is None:
            # The line itself is not shown: somebody may have put the token there instead of its hash.
            raise BadSpec(
                f"line {number} of {path} is not 'HASH read|write|agent NAME'; see 'joulewise serve token --help'"
            )
        found.append(Token(match["hash"], Scope(match["scope"]), match["name"] or ""))
    return tuple(found)


def keep(path: Path, token: Token) -> None:
    """Add a token to a file, which is made, for its owner's eyes only, if need be. NotKept where that fails."""
    line = f"{token.hash} {token.scope} {token.name}".rstrip() + "\n"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "rb+", buffering=0) as file:
            # Tokens are taken back by hand, and an editor may leave the last line open.
            size = file.seek(0, os.SEEK_END)
            open_line = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            file.write((("\n" if open_line else "") + line).encode())
    except OSError as error:
        raise NotKept(_cannot(path, error)) from error


def _cannot(path: Path, error: OSError) -> str:
    return f"{path}: {(error.strerror or str(error)).lower()}; name another file with --token-file"


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a request is not served, as HTTP says it."""

    status: int
    message: str


class Guard:
    """Whether a request may be served, and who asks.

    - Over TCP: whoever bears a token of sufficient scope. ``local_users``: besides, everybody who comes from this
      machine to this machine (a page in a browser here may be made to ask under somebody else's name, so the name is
      looked at too). ``open_to_all``: anybody; then something in front of the server decides.
    - Through a Unix socket: root, the server's own user and the members of the group ``operators_gid`` may do
      everything. ``users``: all others may read, and do what is for a job's owner (``owners``).

    A browser's request on behalf of a page that is not this server's own is never served.
    """

    def __init__(
        self,
        tokens: Iterable[Token] | None = None,
        *,
        local_users: bool = False,
        open_to_all: bool = False,
        users: bool = False,
        operators_gid: int | None = None,
    ) -> None:
        self._tokens = () if tokens is None else tuple(tokens)
        self._local_users = local_users
        self._open_to_all = open_to_all
        self._users = users
        self._operators = frozenset({0, os.geteuid()})
        self._operators_gid = operators_gid

    def refuses(self, scope: Scope, **asked: Any) -> Refused | None:
        """As ``admits``; None to serve it."""
        answer = self.admits(scope, **asked)
        return answer if isinstance(answer, Refused) else None

    def admits(
        self,
        scope: Scope,
        *,
        authorization: str | None,
        peer: str | None,
        host: str | None,
        origin: str | None = None,
        node: str | None = None,
        local: Peer | None = None,
        owners: bool = False,
    ) -> Caller | Refused:
        """Who asks, or why they are refused. ``peer`` is the other end's address, ``host`` the name under which we were
        called, ``origin`` the page that a browser asks for, ``node`` the one that is spoken for, if any; ``local``: the
        process at the other end of a Unix socket. ``owners``: it may be their own job, which is for whoever does it to
        judge."""
        if origin is not None and origin.partition("://")[2].lower() != (host or "").lower():
            return Refused(403, "pages of other addresses are not served; open the dashboard at this server's own")
        if local is not None:
            return self._user(scope, local, owners=owners)
        if self._open_to_all:
            return Caller(operator=True)
        if self._local_users and is_loopback(peer or "") and is_loopback(_without_port(host or "")):
            return Caller(operator=True)
        match = _BEARER.fullmatch(authorization or "")
        if match is None:
            return Refused(401, "a token is needed: 'Authorization: Bearer TOKEN'; see 'joulewise serve token'")
        known = self._known(_hash(match["token"]))
        if known is None:
            return Refused(401, "this token is not known here; see 'joulewise serve token'")
        if scope not in _GOOD_FOR[known.scope]:
            can = "may only read" if known.scope is Scope.READ else "is a node agent's and may only report"
            return Refused(403, f"this token {can}; make one with 'joulewise serve token --scope {scope}'")
        if node is not None and known.scope is Scope.AGENT and known.name not in (node, EVERY_NODE):
            whose = f"is for node {known.name!r}" if known.name else "names no node"
            way_out = "make one with 'joulewise serve token --scope agent --name NODE'"
            return Refused(403, f"this token {whose}, and {node!r} reports with it; {way_out}")
        return Caller(token=known.name, operator=known.scope is Scope.WRITE)

    def _user(self, scope: Scope, local: Peer, *, owners: bool) -> Caller | Refused:
        operator = local.uid in self._operators or self._operators_gid in local.groups
        if operator or (self._users and (scope is Scope.READ or owners)):
            return Caller(uid=local.uid, operator=operator)
        if not self._users:
            return Refused(403, f"this socket is for uid {os.geteuid()} and root; you are uid {local.uid}")
        return Refused(403, f"this is for operators: root, uid {os.geteuid()} and tokens; you are uid {local.uid}")

    def known(self, authorization: str | None) -> Token | None:
        """Which of its tokens a request bears; None for none of them."""
        match = _BEARER.fullmatch(authorization or "")
        return None if match is None else self._known(_hash(match["token"]))

    def _known(self, digest: str) -> Token | None:
        found = None
        for token in self._tokens:  # all of them, each in constant time: how long it takes tells nothing
            if hmac.compare_digest(token.hash, digest):
                found = token
        return found


def is_loopback(host: str) -> bool:
    """Whether a name or an address is this machine's own and nobody else's."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _without_port(host: str) -> str:
    return re.sub(r":\d+$", "", host)
