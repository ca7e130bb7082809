from pathlib import Path

import pytest

from joulewise.native import library_path


def test_the_virtual_nvml_is_found_under_the_name_that_clients_load(library: Path) -> None:
    assert library.name == "libnvidia-ml.so.1"
    assert library.is_file()


def test_a_library_that_was_not_built_is_an_error_with_the_way_out() -> None:
    with pytest.raises(FileNotFoundError, match=r"libnothing\.so is not built.*pip install"):
        library_path("libnothing.so")
