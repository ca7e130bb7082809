"""Who asks a server for something: a user of this machine as the kernel names them, or the bearer of a token.

Whatever is done at somebody's word is journalled with them (``facts``), so the word never comes from the request
itself. A caller with neither a uid nor a token is anybody: the server was started so that no one is asked.
"""

from __future__ import annotations

import pwd
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Caller:
    """``uid``: of the process at the other end of a Unix socket; ``token``: the name of the token that was shown.
    ``operator``: may do everything, and not only what concerns their own jobs."""

    uid: int | None = None
    token: str | None = None
    operator: bool = False

    @property
    def facts(self) -> dict[str, Any]:
        """As the journal has it. Asks the password file, so not for an event loop."""
        if self.uid is not None:
            name = _user(self.uid)
            return {"uid": self.uid} if name is None else {"uid": self.uid, "user": name}
        return {} if self.token is None else {"token": self.token}

    @property
    def user(self) -> str:
        """Whose jobs count together: the user's name, or number where nobody is called by it; ``token NAME``; empty
        for anybody. Asks the password file."""
        if self.uid is not None:
            return _user(self.uid) or str(self.uid)
        return "" if self.token is None else f"token {self.token}".rstrip()

    def __str__(self) -> str:
        return named(self.facts)


def named(facts: Any) -> str:
    """A caller in words, from a journal's facts: ``alice (uid 1000)``, ``token ci``; empty where nobody is named."""
    if not isinstance(facts, Mapping):
        return ""
    uid, user, token = (facts.get(key) for key in ("uid", "user", "token"))
    if isinstance(uid, int):
        return f"{user} (uid {uid})" if isinstance(user, str) else f"uid {uid}"
    if isinstance(token, str):
        return f"token {token}" if token else "a token without a name"
    return ""


def uid_of(facts: Any) -> int | None:
    """The uid in a journal's facts; None where there is none."""
    uid = facts.get("uid") if isinstance(facts, Mapping) else None
    return uid if isinstance(uid, int) and not isinstance(uid, bool) else None


def _user(uid: int) -> str | None:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None
