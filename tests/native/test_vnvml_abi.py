"""The library's shape: what it exports, and that its structs are as large as those of nvidia-ml-py."""

from __future__ import annotations

import ctypes
import re
import shutil
import struct
import subprocess
from importlib.metadata import version
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pynvml
import pytest

import joulewise.native

SOURCES = Path(joulewise.native.__file__).parent / "vnvml"


def exported_names(library: Path) -> set[str]:
    """The defined symbols of an ELF file's dynamic symbol table (64-bit, little-endian)."""
    data = library.read_bytes()
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, table + i * size) for i in range(count)]
    symbols = next(section for section in sections if section[1] == 11)
    texts = sections[symbols[6]]
    names = set()
    for at in range(symbols[4], symbols[4] + symbols[5], 24):
        name, _info, _other, section = struct.unpack_from("<IBBH", data, at)
        if section != 0:
            start = texts[4] + name
            names.add(data[start : data.index(b"\0", start)].decode())
    return names


def listed_names() -> set[str]:
    return set(re.findall(r"NAME\((\w+)\)", (SOURCES / "names.h").read_text())) | {"nvmlErrorString"}


def test_it_exports_the_listed_names_and_nothing_else(library: Path) -> None:
    assert exported_names(library) == listed_names()


def test_there_is_no_getter_for_locked_clocks(library: Path) -> None:
    """The real library has none, so nobody may come to rely on one here."""
    assert not [name for name in exported_names(library) if "Get" in name and "Locked" in name]


def test_every_listed_name_is_one_of_the_real_library() -> None:
    spec = spec_from_file_location("list_names", SOURCES / "list_names.py")
    assert spec is not None
    assert spec.loader is not None
    list_names = module_from_spec(spec)
    spec.loader.exec_module(list_names)
    made_from = (SOURCES / "names.h").read_text().split("nvidia-ml-py ")[1].split(";")[0]
    if version("nvidia-ml-py") != made_from:
        pytest.skip(f"names.h is made from nvidia-ml-py {made_from}, here is {version('nvidia-ml-py')}")
    assert listed_names() == {*list_names.wrapped_names(), *list_names.NOT_WRAPPED}


@pytest.fixture(scope="module")
def sizes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """The size of every struct of nvml_abi.h, from the compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to ask for struct sizes")
    names = re.findall(r"^\} (nvml\w+_t);", (SOURCES / "nvml_abi.h").read_text(), re.MULTILINE)
    lines = "".join(f'printf("{name} %zu\\n", sizeof({name}));' for name in names)
    folder = tmp_path_factory.mktemp("abi")
    (folder / "sizes.c").write_text(f'#include <stdio.h>\n#include "nvml_abi.h"\nint main(void) {{ {lines} }}')
    subprocess.run([compiler, "-I", SOURCES, "-o", folder / "sizes", folder / "sizes.c"], check=True)
    listing = subprocess.run([folder / "sizes"], capture_output=True, text=True, check=True).stdout
    return {name: int(size) for name, size in (line.split() for line in listing.splitlines())}


SAME_STRUCT = {
    "nvmlPciInfo_v2_t": "nvmlPciInfo_v2_t",
    "nvmlPciInfo_t": "nvmlPciInfo_t",
    "nvmlPciInfoExt_v1_t": "nvmlPciInfoExt_v1_t",
    "nvmlUUID_t": "c_nvmlUUID_t",
    "nvmlMemory_t": "c_nvmlMemory_t",
    "nvmlMemory_v2_t": "c_nvmlMemory_v2_t",
    "nvmlUtilization_t": "c_nvmlUtilization_t",
    "nvmlTemperature_v1_t": "c_nvmlTemperature_v1_t",
    "nvmlPowerValue_v2_t": "c_nvmlPowerValue_v2_t",
    "nvmlValue_t": "c_nvmlValue_t",
    "nvmlSample_t": "c_nvmlSample_t",
    "nvmlFieldValue_t": "c_nvmlFieldValue_t",
    "nvmlViolationTime_t": "c_nvmlViolationTime_t",
    "nvmlProcessInfo_t": "c_nvmlProcessInfo_v3_t",
    "nvmlProcessDetail_v1_t": "c_nvmlProcessDetail_v1_t",
    "nvmlProcessDetailList_v1_t": "c_nvmlProcessDetailList_v1_t",
    "nvmlEventData_t": "c_nvmlEventData_t",
    "nvmlGpmMetric_t": "c_nvmlGpmMetric_t",
    "nvmlGpmSupport_t": "c_nvmlGpmSupport_t",
}
NOT_IN_NVIDIA_ML_PY = {"nvmlReturn_t": 4, "nvmlProcessInfo_v1_t": 16, "nvmlGpmMetricsGet_t": 24}
"""The first process struct is retired there, and the array at the end of the GPM one is the caller's to size."""


def test_structs_are_as_large_as_those_of_nvidia_ml_py(sizes: dict[str, int]) -> None:
    theirs = {ours: ctypes.sizeof(getattr(pynvml, name)) for ours, name in SAME_STRUCT.items()}
    assert sizes == theirs | NOT_IN_NVIDIA_ML_PY


def test_the_metrics_of_a_gpm_query_begin_where_nvidia_ml_py_has_them(sizes: dict[str, int]) -> None:
    assert pynvml.c_nvmlGpmMetricsGet_t.metrics.offset == sizes["nvmlGpmMetricsGet_t"]
