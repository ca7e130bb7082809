"""Write ``names.h``, the names that the virtual NVML exports, from an installed nvidia-ml-py.

Run by hand when a new nvidia-ml-py comes out; the build needs the committed list alone:

    python src/joulewise/native/vnvml/list_names.py
"""

from __future__ import annotations

import re
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

NOT_WRAPPED = (
    "nvmlComputeInstanceGetInfo",
    "nvmlDeviceGetAttributes",
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetCount",
    "nvmlDeviceGetGpuInstancePossiblePlacements",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetGridLicensableFeatures",
    "nvmlDeviceGetGridLicensableFeatures_v2",
    "nvmlDeviceGetGridLicensableFeatures_v3",
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetHandleByPciBusId",
    "nvmlDeviceGetMPSComputeRunningProcesses",
    "nvmlDeviceGetNvLinkRemotePciInfo",
    "nvmlDeviceGetPciInfo",
    "nvmlDeviceGetPciInfo_v2",
    "nvmlDeviceRemoveGpu_v2",
    "nvmlEventSetWait",
    "nvmlGetBlacklistDeviceCount",
    "nvmlGetBlacklistDeviceInfoByIndex",
    "nvmlInit",
    "nvmlInit_v2",
    "nvmlVgpuInstanceGetLicenseInfo",
)
"""Older forms that the real library exports and other bindings call, but nvidia-ml-py does not."""


def wrapped_names() -> list[str]:
    """The names that nvidia-ml-py looks up in the library, read from its source."""
    spec = find_spec("pynvml")
    if spec is None or spec.origin is None:
        raise SystemExit("nvidia-ml-py is not installed; pip install nvidia-ml-py")
    source = Path(spec.origin).read_text(encoding="utf-8")
    return re.findall(r"_nvmlGetFunctionPointer\([\"'](nvml\w+)[\"']\)", source)


def main() -> None:
    """Write names.h beside this file."""
    names = sorted({*wrapped_names(), *NOT_WRAPPED})
    # Its result is no error code, so that it cannot be a stub; system.c has it.
    names.remove("nvmlErrorString")
    lines = [
        f"/* Made by list_names.py from nvidia-ml-py {version('nvidia-ml-py')}; do not edit. */",
        *(f"NAME({name})" for name in names),
    ]
    (Path(__file__).parent / "names.h").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
