"""Countersigning over HTTP: this server signs that a seal was shown to it, and when. It reads and writes no store.

Useful only where the server's key is out of reach of whoever asks: on another host, or under another user. See
``store.countersignature`` for what a signature says and what it does not.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict, Field

from joulewise.serve.guarded import allowed
from joulewise.serve.problems import documented
from joulewise.serve.requests import Body
from joulewise.serve.tokens import Guard, Scope
from joulewise.store.countersignature import SigningKey, Statement

PATH = "/api/countersign"
_Hash = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class SealBody(Body):
    """What is to be countersigned."""

    run: str = Field(min_length=1, max_length=200, description="The run's name.")
    events: int = Field(ge=1, le=2**53, description="Events that the seal covers.")
    sha256: _Hash = Field(description="The seal.")
    readings_sha256: _Hash = Field(description="Digest of the readings kept beside the journal.")


class StatementAnswer(BaseModel):
    """What was signed."""

    model_config = ConfigDict(extra="forbid")

    run: str
    events: int
    sha256: str
    readings_sha256: str
    asker: str
    signer: str
    at_unix_s: float


class SignedAnswer(BaseModel):
    """A countersignature."""

    model_config = ConfigDict(extra="forbid")

    statement: StatementAnswer
    key: str
    signature: str


class KeyAnswer(BaseModel):
    """The server's public key. Fetch it over a connection that you trust, once, and keep it."""

    model_config = ConfigDict(extra="forbid")

    key: str
    signer: str


class Signer:
    """Signs with one key. ``now``: seconds since 1970."""

    def __init__(self, key: SigningKey, name: str, *, now: Callable[[], float] = time.time) -> None:
        self.key, self.name, self._now = key, name, now

    @classmethod
    def open(cls, path: Path) -> Signer:
        """With the key of ``path``, made at first use; raises as ``SigningKey.open``."""
        return cls(SigningKey.open(path), socket.gethostname())

    def sign(self, body: SealBody, asker: str) -> SignedAnswer:
        """The statement that ``asker`` showed this seal now, signed."""
        statement = Statement(
            body.run, body.events, body.sha256, body.readings_sha256, asker, self.name, round(self._now(), 3)
        )
        return SignedAnswer.model_validate(self.key.sign(statement).to_json())


def countersigning_router(signer: Signer, guard: Guard) -> APIRouter:
    """The routes under ``/api/countersign``: who may write may have a seal signed, who may read may know the key."""
    router = APIRouter(prefix=PATH, tags=["countersign"])

    @router.post(
        "",
        dependencies=[Depends(allowed(guard, Scope.WRITE))],
        responses=documented(401, 403, 413, 422),
        summary="Sign that this seal exists now",
    )
    async def countersign(body: SealBody, request: Request) -> SignedAnswer:
        """The signature says when the seal was shown to this server, and nothing of what the GPUs did."""
        return signer.sign(body, request.client.host if request.client else "")

    @router.get(
        "",
        dependencies=[Depends(allowed(guard, Scope.READ))],
        responses=documented(401, 403, 422),
        summary="The key that countersigns",
    )
    async def key() -> KeyAnswer:
        return KeyAnswer(key=signer.key.public, signer=signer.name)

    return router
