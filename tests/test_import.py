import subprocess
import sys

import pytest


def test_importing_joulewise_loads_nothing_outside_the_standard_library():
    probe = (
        "import sys; before = set(sys.modules); import joulewise; import joulewise.core.frontier;"
        "print(*sorted({n.split('.')[0] for n in set(sys.modules) - before}))"
    )
    out = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True).stdout
    foreign = {name for name in out.split() if name not in sys.stdlib_module_names and name != "joulewise"}
    assert foreign == set()


def test_public_names_load_on_first_use_and_others_are_refused():
    import joulewise

    assert set(dir(joulewise)) == set(joulewise.__all__)
    for name in joulewise.__all__:
        assert getattr(joulewise, name) is not None
    assert joulewise.follow.__module__ == "joulewise.frameworks.pipelining"
    with pytest.raises(AttributeError, match="nonsense"):
        joulewise.nonsense  # noqa: B018 - the access is the test


def test_following_a_plan_loads_no_torch_before_it_is_used():
    probe = "import sys; import joulewise; joulewise.follow; print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["False"]
