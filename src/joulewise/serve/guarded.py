"""The guard in front of a route: who may not is answered before anything is looked at."""

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.exceptions import HTTPException

from joulewise.serve.tokens import Guard, Scope

_BEARER = HTTPBearer(auto_error=False, description="A token that 'joulewise serve token' made.")


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
