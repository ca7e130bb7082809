"""The state of an elastic script: whatever form it is given in, as pairs of functions that save and load.

Plain Python from 3.9 on, standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from joulewise.core.errors import BadSpec

Part = tuple[Callable[[], Any], Callable[[Any], Any]]
"""The first gives what the second takes."""
Parts = Mapping[str, Part]

_WAY_OUT = 'give {"save": function, "load": function} for it'


def parts(state: Any) -> Parts:
    """Each part of the state as (save, load). BadSpec for what is neither."""
    alone = _part(state)
    if alone is not None:
        return {"state": alone}
    if not isinstance(state, Mapping) or not state:
        raise BadSpec(f"a state of type {type(state).__name__} has no state_dict() and load_state_dict(); {_WAY_OUT}")
    found = {}
    for name, each in state.items():
        part = _part(each)
        if part is None:
            raise BadSpec(f"{name!r} of the state ({type(each).__name__}) has no state_dict(); {_WAY_OUT}")
        found[str(name)] = part
    return found


def _part(state: Any) -> Part | None:
    if isinstance(state, Mapping):
        if set(state) == {"save", "load"} and callable(state["save"]) and callable(state["load"]):
            return state["save"], state["load"]
        return None
    save, load = getattr(state, "state_dict", None), getattr(state, "load_state_dict", None)
    return (save, load) if callable(save) and callable(load) else None
