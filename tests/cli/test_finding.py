import pytest

from joulewise.cli.finding import Finding


def test_a_finding_needs_no_way_out_and_does_not_change():
    found = Finding("power", True, "new every 100 ms")
    assert found.do is None
    with pytest.raises(AttributeError):
        found.ok = False  # type: ignore[misc]
    assert found == Finding("power", True, "new every 100 ms", None)
    assert found != Finding("power", None, "new every 100 ms")
