"""The compiled parts: where their files are. The virtual NVML (C) is one; it is loaded by name, not imported.

They are plain shared libraries with a C ABI, built by CMake into ``lib/`` of this package (see ``CMakeLists.txt``).
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

VNVML = "libnvidia-ml.so.1"
"""The virtual NVML. Its directory on ``LD_LIBRARY_PATH`` stands in for the driver's library."""


def library_path(name: str = VNVML) -> Path:
    """The built library called ``name``. Raises FileNotFoundError, with the way out, if it was not built."""
    looked_in = tuple(_directories())
    for directory in looked_in:
        if (directory / name).is_file():
            return directory / name
    raise FileNotFoundError(
        f"{name} is not built (looked in {', '.join(map(str, looked_in))}); "
        "install joulewise from a wheel, or with a C compiler: pip install -e ."
    )


def _directories() -> Iterator[Path]:
    for location in __path__:
        yield Path(location) / "lib"
    # An editable install leaves this package in the source tree and puts what it built into site-packages.
    try:
        yield Path(str(distribution("joulewise").locate_file("joulewise/native/lib")))
    except PackageNotFoundError:
        return
