"""Found by Python at start-up through PYTHONPATH, to follow a script's optimisers; then it is gone.

Python imports the first ``sitecustomize`` on its path. This one steps aside for the next, which runs as if it had been
first, and leaves a finder that waits for ``torch.optim``. A program that never imports it pays nothing. It runs in
whatever Python the user's command starts, and in every one, so it is plain, loads hardly anything, and keeps every
trouble of ours to itself.
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
# The package, not its module ``optimizer``: whatever else waits for that module has then had its turn, so that our
# hook is the last and its stamp comes after theirs.
_WANTED = "torch.optim"


class _Finder:
    """Waits for the optimisers, then tells them to tell us of their steps."""

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """None, always but once: others find modules."""
        if sys.modules.get("sitecustomize") is _this:
            del sys.modules["sitecustomize"]  # nobody else had one: let there be none
        if name != _WANTED:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        loader = spec.loader

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # from here on it is the loader's own again
            loader.exec_module(module)
            _follow(module)

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _follow(module: ModuleType) -> None:
    """Load the rest of us, from beside this file unless the script's own Python has it, and start."""
    sys.path.append(_ROOT)
    try:
        from joulewise.frameworks.iterations import follow

        follow(module)
    except Exception:  # an older Python, another joulewise: there are no marks, and the script is as ever
        return
    finally:
        sys.path.remove(_ROOT)


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
        if os.environ.get("JOULEWISE_MARKS"):
            sys.meta_path.insert(0, _Finder())


_this = sys.modules[__name__]
if __name__ == "sitecustomize":
    _step_aside()
