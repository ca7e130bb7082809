"""A package called torch with as much of its optimisers as hooks touch: where the real one would be slow."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

_TORCH = {
    "__init__.py": "",
    "optim/__init__.py": "from .optimizer import Optimizer",
    "optim/optimizer.py": """
        _hooks = []

        def register_optimizer_step_post_hook(hook):
            _hooks.append(hook)

        class Optimizer:
            def step(self):
                for hook in _hooks:
                    hook(self, (), {})
    """,
    "utils/__init__.py": "",
    "utils/data.py": "worker = None\ndef get_worker_info():\n    return worker",
}
# What a script may do that must be counted rightly, and the steps that it takes.
TAKE_TURNS, STEPS_TAKING_TURNS = (
    """
        import torch.optim
        one, other = torch.optim.Optimizer(), torch.optim.Optimizer()
        for _ in range(10):
            one.step()
            for _ in range(5):
                other.step()
    """,
    10,
)
FORK, STEPS_OF_PARENT_AND_TRAINER = (
    """
        import os, torch.optim, torch.utils.data
        optimizer = torch.optim.Optimizer()
        for _ in range(3):
            optimizer.step()
        for is_worker in (True, False):
            child = os.fork()
            if child == 0:
                torch.utils.data.worker = object() if is_worker else None
                for _ in range(4):
                    optimizer.step()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        optimizer.step()
    """,
    (4, 4),
)


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that holds a package called torch."""
    home = tmp_path_factory.mktemp("stand-in")
    for name, text in _TORCH.items():
        file = home / "torch" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
    return home
