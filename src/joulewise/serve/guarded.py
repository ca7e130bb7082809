"""The guard in front of a route: who may not is answered before anything is looked at, then what makes no sense."""

from collections.abc import Awaitable, Callable, Iterator
from typing import Annotated

from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from joulewise.core.caller import Caller
from joulewise.core.errors import BadSpec
from joulewise.serve.peer import peer_in
from joulewise.serve.tokens import Guard, Refused, Scope

_BEARER = HTTPBearer(auto_error=False, description="A token that 'joulewise serve token' made.")


async def known_alone(request: Request) -> None:
    """BadSpec for a parameter that the route does not have. A name that was mistyped is told, rather than everything
    answered as if nothing had been asked for. A part of ``allowed``; routes for anybody depend on it by themselves."""
    known = list(_parameters(request.scope["route"].dependant))
    for name in request.query_params:
        if name not in known:
            have = f"this one has {', '.join(known)}" if known else "this one has none"
            raise BadSpec(f"there is no parameter {name[:80]!r} here; {have}")


def _parameters(dependant: Dependant) -> Iterator[str]:
    """What a route and all that it depends on may be asked with; a model stands for its fields."""
    for each in dependant.query_params:
        model = each.field_info.annotation
        if isinstance(model, type) and issubclass(model, BaseModel):
            yield from model.model_fields
        else:
            yield each.alias
    for needed in dependant.dependencies:
        yield from _parameters(needed)


_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip", "via")
"""What proxies add: such a request comes from wherever the proxy's client is, and not from this machine."""


def allowed(guard: Guard, scope: Scope, *, owners: bool = False) -> Callable[..., Awaitable[None]]:
    """What a router of that scope depends on: 401 or 403 for a request that the guard refuses, then BadSpec for
    parameters that the route does not have. Where its path names a ``node``, an agent's token must be that node's.
    ``owners``: for users of this machine as well, whose own job it may be; the route must ask whose it is. Who asks is
    a route's parameter of type ``By``."""

    # Not in a thread: it waits for nothing, and a crowd of agents must not queue for threads.
    async def check(
        request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)]
    ) -> None:  # the second only tells the documentation of tokens
        answer = guard.admits(
            scope,
            authorization=request.headers.get("authorization"),
            peer=request.client.host if request.client and not any(map(request.headers.get, _FORWARDED)) else None,
            host=request.headers.get("host"),
            origin=request.headers.get("origin"),
            node=request.path_params.get("node"),
            local=peer_in(request.scope),
            owners=owners,
        )
        if isinstance(answer, Refused):
            headers = {"WWW-Authenticate": "Bearer"} if answer.status == 401 else None
            raise HTTPException(answer.status, answer.message, headers)
        request.state.caller = answer
        await known_alone(request)

    return check


async def _caller(request: Request) -> Caller:
    caller: Caller = request.state.caller  # a router's dependencies come first
    return caller


By = Annotated[Caller, Depends(_caller)]
"""Who asks: a parameter of a route whose router depends on ``allowed``."""
