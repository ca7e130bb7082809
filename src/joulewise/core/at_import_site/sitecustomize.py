"""Found by Python at start-up through PYTHONPATH, to wait for modules that a script imports; then it is gone.

Python imports the first ``sitecustomize`` on its path. This one steps aside for the next, which runs as if it had been
first, and leaves a finder that waits for the modules that ``JOULEWISE_AT_IMPORT`` names (``core/at_import``). A program
that never imports them pays nothing. It runs in whatever Python the user's command starts, and in every one, so it is
plain, loads hardly anything, and keeps every trouble of ours to itself.
"""

# ruff: noqa: PTH100, PTH120 (pathlib would cost every Python process some milliseconds)

from __future__ import annotations

import importlib.util
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_HERE = os.path.dirname(os.path.abspath(__file__))
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))  # where the package joulewise lies


class _Finder:
    """Waits for modules, then hands each to the functions that wait for it."""

    def __init__(self, calls: dict[str, list[str]]) -> None:
        self._calls = calls

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """None, but once for each module that is waited for: others find modules."""
        if sys.modules.get("sitecustomize") is _this:
            del sys.modules["sitecustomize"]  # nobody else had one: let there be none
        if name not in self._calls:
            return None
        calls = self._calls.pop(name)
        if not self._calls:
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        loader = spec.loader

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # from here on it is the loader's own again
            loader.exec_module(module)
            for call in calls:
                _call(call, module)

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _call(call: str, module: ModuleType) -> None:
    """Load the rest of us, from beside this file unless the script's own Python has it, and start."""
    sys.path.append(_ROOT)
    try:
        home, _, function = call.partition(":")
        getattr(importlib.import_module(home), function)(module)
    except Exception:  # an older Python, another joulewise: nobody is told, and the script is as ever
        return
    finally:
        sys.path.remove(_ROOT)


def _waiting() -> dict[str, list[str]]:
    calls: dict[str, list[str]] = {}
    for each in os.environ.get("JOULEWISE_AT_IMPORT", "").split():
        module, _, call = each.partition("=")
        calls.setdefault(module, []).append(call)
    return calls


def _step_aside() -> None:
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _HERE]
    sys.path_importer_cache.pop(_HERE, None)
    del sys.modules["sitecustomize"]
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = _this  # the import that is under way wants to find something
    finally:
        sys.modules.setdefault("sitecustomize", _this)
        if calls := _waiting():
            sys.meta_path.insert(0, _Finder(calls))


_this = sys.modules[__name__]
if __name__ == "sitecustomize":
    _step_aside()
