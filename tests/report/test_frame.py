from joulewise.report.frame import text


def test_no_line_ends_between_a_number_and_its_unit_or_sign():
    said = text("saved 5.6 % ± 0.2 % energy, 28.5 ± 1.2 kJ in 17 min 54 s on 2 GPUs")
    assert said.replace("&nbsp;", "_") == "saved 5.6_% ±_0.2_% energy, 28.5 ±_1.2_kJ in 17_min 54_s on 2_GPUs"


def test_what_only_looks_like_a_unit_is_left_alone():
    assert text("4 settings, 3 Wheels, 12 hours") == "4 settings, 3 Wheels, 12 hours"


def test_words_are_never_markup():
    assert text("5 % <b>") == "5&nbsp;% &lt;b&gt;"
