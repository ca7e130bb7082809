"""joulewise as if it were installed where PyTorch is: its sources, and what was compiled, for the peers' Python."""

from __future__ import annotations

import os
from pathlib import Path

from joulewise import native
from joulewise.plan.flow_native import LIBRARY
from tests.peers.conftest import ROOT


def python_path(folder: Path) -> str:
    """A PYTHONPATH for it; ``folder`` gets what pip would leave. FileNotFoundError where something was not built."""
    about = folder / "joulewise-0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: joulewise\nVersion: 0\n")
    library = folder / "joulewise" / "native" / "lib"
    library.mkdir(parents=True)
    for name in (native.VNVML, LIBRARY):
        (library / name).symlink_to(native.library_path(name))
    return f"{ROOT / 'src'}{os.pathsep}{folder}"
