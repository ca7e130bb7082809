"""The guard in front of a route: who may not is answered before anything is looked at."""

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.exceptions import HTTPException

from joulewise.core.errors import BadSpec
from joulewise.serve.tokens import Guard, Scope

_BEARER = HTTPBearer(auto_error=False, description="A token that 'joulewise serve token' made.")


async def known_alone(request: Request) -> None:
    """For routes whose parameters are all their own: BadSpec for one that the route does not have. A name that was
    mistyped is told, rather than everything answered as if nothing had been asked for."""
    known = [each.alias for each in request.scope["route"].dependant.query_params]
    for name in request.query_params:
        if name not in known:
            have = f"this one has {', '.join(known)}" if known else "this one has none"
            raise BadSpec(f"there is no parameter {name[:80]!r} here; {have}")


def allowed(guard: Guard, scope: Scope) -> Callable[..., Awaitable[None]]:
    """What a router of that scope depends on: 401 or 403 for a request that the guard refuses.
    Where its path names a ``node``, an agent's token must be that node's."""

    # Not in a thread: it waits for nothing, and a crowd of agents must not queue for threads.
    async def check(
        request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)]
    ) -> None:  # the second only tells the documentation of tokens
        refused = guard.refuses(
            scope,
            authorization=request.headers.get("authorization"),
            peer=request.client.host if request.client else None,
            host=request.headers.get("host"),
            node=request.path_params.get("node"),
        )
        if refused is not None:
            headers = {"WWW-Authenticate": "Bearer"} if refused.status == 401 else None
            raise HTTPException(refused.status, refused.message, headers)

    return check
