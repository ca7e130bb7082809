import math
import re
import xml.etree.ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from joulewise.report.chart import Chart, span, ticks

ordinary = st.floats(-1e6, 1e6)


@given(ordinary, st.floats(1e-3, 1e6))
def test_ticks_are_few_round_and_inside(low, width):
    found = ticks(low, low + width)
    assert 1 <= len(found) <= 13
    assert all(low - width * 1e-6 <= tick <= low + width * (1 + 1e-6) for tick in found)
    assert found == sorted(set(found))


def test_ticks_are_labels_a_person_would_write():
    assert ticks(0, 1, 5) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert ticks(3, 3) == [3]


@given(st.lists(ordinary, max_size=20))
def test_a_span_holds_every_value(values):
    low, high = span(values)
    assert low < high
    assert all(low <= value <= high for value in values)


@given(st.lists(st.tuples(ordinary, st.one_of(ordinary, st.just(math.nan))), min_size=1, max_size=30))
def test_whatever_is_drawn_is_well_formed_and_finite(points):
    x, y = span(p[0] for p in points), span(p[1] for p in points)
    chart = Chart(x, y).axes("time <s>", "a & b")
    chart.line(points, "power", says="<title>").band(points, points, "power")
    chart.dot(points[0][0], 0.0, "held", x_error=1e9, y_error=1e9, label="<here>").upright(points[0][0], "turn")
    chart.stripe(x[0], x[1], "hold", says='"').level(0.0, "zero", label="&")
    svg = chart.svg('it says "so" & <more>')
    ET.fromstring(svg)
    assert "nan" not in svg
    assert "inf" not in svg


def test_a_gap_breaks_a_curve():
    svg = Chart((0, 4), (0, 1)).line([(0, 0), (1, 1), (2, math.nan), (3, 0), (4, 1)], "power").svg("")
    assert svg.count("M") == 2


def test_names_stand_where_there_is_room_and_never_on_one_another():
    def drawn(*points):
        chart = Chart((0.0, 100.0), (0.0, 100.0))
        for x, y, _ in points:
            chart.dot(x, y, "tried")
        return chart.names(points, "quiet").svg("names")

    apart = drawn((20.0, 50.0, "one"), (80.0, 50.0, "other"))
    assert "one" in apart
    assert "other" in apart
    crowd = drawn(*((50.0 + place / 100, 50.0, f"number-{place}") for place in range(9)))
    places = re.findall(r'class="note quiet[^"]*" x="([\d.]+)" y="([\d.]+)"', crowd)
    assert 1 <= len(places) <= 4
    assert len(set(places)) == len(places)
    assert 'note quiet end"' in drawn((99.9, 50.0, "at the edge"))
