"""``joulewise plan``: a profile becomes a plan, a plan tables and pictures, and what is wrong one line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from joulewise.cli import main, plan_amounts
from joulewise.core.errors import BadSpec
from joulewise.core.knob import Setting
from joulewise.plan import plan_files
from joulewise.report.plan_colours import Scale, hue, ink_on
from tests import preloaded
from tests.plan.made_up import partitioned
from tests.plan.made_up import plan as made_up_plan
from tests.plan.made_up import profile as made_up

SOLVE = ("--schedule", "1f1b", "--microbatches", "6", "--blocking-w", "80")


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    rows = [
        f"{stage},{kind},{point.setting['sm_mhz']:g},{point.time_s!r},{point.energy_j!r}"
        for (stage, kind), points in made_up(3).options.items()
        for point in points
    ]
    path = tmp_path / "profile.csv"
    path.write_text("\n".join(["stage,instruction,frequency,time,energy", *rows]) + "\n")
    return path


@pytest.fixture
def plan(profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    path = tmp_path / "plan.json"
    assert called("solve", profile, *SOLVE, "--gpu-name", "NVIDIA A100", "--model", "tiny", "-o", path) == 0
    capsys.readouterr()
    return path


def called(*args: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([*map(str, ("plan", *args))])
    return int(ended.value.code or 0)


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    """What was said, if it was one line on stderr and nothing else."""
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    return shown.err


def test_a_profile_becomes_a_plan_that_loads(profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "plan.json"
    assert called("solve", profile, *SOLVE, "--gpus-per-rank", 8, "--out", out) == 0
    shown = capsys.readouterr()
    plan = plan_files.read(out)
    assert plan.costs.gpus_per_rank == 8
    assert plan.schedule.stages == 3
    assert "energy at the same speed; at most" in shown.out
    assert "nothing set" in shown.out
    assert "36 operations" in shown.err
    assert all(len(line) <= 80 for line in shown.out.splitlines())


def test_json_has_every_point_and_the_saving(profile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert called("solve", profile, *SOLVE, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["file"] is None
    assert said["baseline"]["saving"] == 0
    assert said["as_fast"]["saving"] > 0.01
    assert abs(said["as_fast"]["slowdown"]) < 1e-6
    assert said["points"][-1]["energy_j"] == min(point["energy_j"] for point in said["points"])


def test_scaling_splitting_and_a_schedule_of_ones_own(
    profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    order = tmp_path / "order.csv"
    order.write_text("0F0,0F1,0I0,0I1,0W0,0W1\n1F0,1I0,1F1,1I1,1W0,1W1\n2F0,2B0,2F1,2B1\n")
    flags = ("--blocking-w", 80, "--split-backward", 0.4, "--scale-time", 10, "--transfer", "5ms", "--json")
    assert called("solve", profile, "--schedule", order, *flags) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["assumptions"] == ["input_grad is 0.4 of a backward that was measured whole"]
    assert said["baseline"]["time_s"] > 5
    assert "order.csv, 3 stages on 3 ranks, 2 microbatches" in said["parallelism"]


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("--schedule", "2f2b"), "--schedule 2f2b: names are gpipe, 1f1b"),
        (("--schedule", "none.csv"), "none.csv cannot be read: no such file"),
        (("--schedule", "1f1b"), "--schedule 1f1b needs --microbatches"),
        ((*SOLVE, "--stages", "4"), "stage 3 is missing in the profile, which has 0…2"),
        (("--schedule", "zero-bubble", "--microbatches", "6"), "the input_grad of stage 0 is missing"),
        (("--schedule", "interleaved", "--microbatches", "6"), "say on how many ranks"),
        (("--schedule", "1f1b", "--microbatches", "6", "--blocking-w", "-1"), "blocking_w is -1"),
        ((*SOLVE, "--gpus-per-rank", "0"), "gpus_per_rank is 0"),
        ((*SOLVE, "--scale-time", "0"), "scale factors must be above 0"),
        ((*SOLVE, "--switch-time", "fast"), "--switch-time 'fast' is no time"),
        ((*SOLVE, "--slope-grid", "-1"), "slope grid of -1 W"),
        ((*SOLVE, "--out", "/nowhere/plan.json"), "--out /nowhere/plan.json cannot be written"),
    ],
)
def test_what_cannot_be_solved_is_one_line(
    profile: Path, args: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = args if "--blocking-w" in args else (*args, "--blocking-w", "80")
    assert called("solve", profile, *given) == 2
    assert why in one_line(capsys)


def test_one_clock_is_an_error_where_it_is_all_there_is_and_a_remark_where_it_is_not(
    profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = profile.read_text().splitlines()
    profile.write_text("\n".join(row for row in rows if ",1410," in row or "stage" in row))
    assert called("solve", profile, *SOLVE) == 2
    assert "one setting only, so there is nothing to choose" in capsys.readouterr().err
    profile.write_text("\n".join(row for row in rows if ",1410," in row or not row.startswith("2,")))
    assert called("solve", profile, *SOLVE) == 0
    assert "never slowed down: backward of stage 2, forward of stage 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "profile.csv is empty; a profile has the columns stage, instruction"),
        ("{", "has no column 'stage'"),
        ("\x00\xff", "has no column 'stage'"),
        ("{head}\n", "the profile is empty"),
        ("{head}\n0,forward,1410,nan,3\n", "line 2: time 'nan' is not a number above 0"),
        ("{rows}0,forward,1100", "time '' is not a number above 0"),
        ("{rows}0,sideways,1100,1,3\n", "'sideways' is no operation; operations are forward"),
    ],
)
def test_a_damaged_profile_is_one_line_and_writes_nothing(
    profile: Path, text: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = profile.read_text()
    profile.write_text(
        text.format(head=rows.splitlines()[0], rows=rows) if "{head" in text or "{rows" in text else text
    )
    assert called("solve", profile, *SOLVE, "--out", tmp_path / "plan.json") == 2
    assert why in one_line(capsys)
    assert not (tmp_path / "plan.json").exists()


def test_a_stage_in_the_middle_that_was_not_measured_is_named(
    profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = profile.read_text().splitlines()
    profile.write_text("\n".join(row for row in rows if not row.startswith("1,")))
    assert called("solve", profile, *SOLVE, "-o", tmp_path / "plan.json") == 2
    assert "stage 1 is missing in the profile, which has [0, 2]; measure it" in one_line(capsys)
    profile.write_text("\n".join(row for row in rows if not row.startswith("1,backward")))
    assert called("solve", profile, *SOLVE, "-o", tmp_path / "plan.json") == 2
    assert "the backward of stage 1 is missing in the profile, which has its forward; measure it" in one_line(capsys)
    assert not (tmp_path / "plan.json").exists()


@pytest.mark.parametrize(
    ("order", "why"),
    [
        ("0F0,0B0\n1F0,1B0\n2B0,2F0\n", "stands before forward of stage 2, microbatch 0, on its rank, but needs it"),
        ("0F0,0B0\n1F0\n2F0,2B0\n", "microbatch 0 at stage 1 has no backward"),
        ("hello,world\n", "'hello' is no action of a pipeline schedule"),
        ("", "the schedule is empty"),
    ],
)
def test_a_schedule_that_cannot_be_run_is_one_line_and_writes_nothing(
    profile: Path, order: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "order.csv", tmp_path / "plan.json"
    path.write_text(order)
    assert called("solve", profile, "--schedule", path, "--blocking-w", 80, "-o", out) == 2
    assert why in one_line(capsys)
    assert not out.exists()


def test_a_circle_over_ranks_is_named(profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "order.csv"
    path.write_text("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n")
    assert called("solve", profile, "--schedule", path, "--blocking-w", 80) == 2
    said = one_line(capsys)
    assert "wait for each other" in said
    assert "of stage 0" in said
    assert "of stage 1" in said


def test_noisy_curves_are_planned_and_remarked_on_and_bent_ones_are_planned(
    profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = profile.read_text()
    profile.write_text(rows + "0,forward,905,9.0,9000\n")  # slower and dearer than any: never chosen
    assert called("solve", profile, *SOLVE, "--json") == 0
    shown = capsys.readouterr()
    assert "noisy" not in shown.err
    assert json.loads(shown.out)["points"][-1]["time_s"] < 9
    quick = min(float(row.split(",")[3]) for row in rows.splitlines()[1:] if row.startswith("0,forward"))
    profile.write_text(rows + f"0,forward,905,{0.9 * quick},1\n")
    assert called("solve", profile, *SOLVE) == 0
    assert "noisy, since over 3 % faster at a lower clock than at the highest: forward of stage 0" in (
        capsys.readouterr().err
    )


def test_what_is_read_is_never_overwritten(profile: Path, plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path, args in ((profile, ("solve", profile, *SOLVE, "-o")), (plan, ("show", plan, "--report"))):
        before = path.read_bytes()
        assert called(*args, path) == 2
        assert "both name" in one_line(capsys)
        assert path.read_bytes() == before


def test_stages_that_a_schedule_leaves_out_are_said(
    profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    order = tmp_path / "order.csv"
    order.write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
    assert called("solve", profile, "--schedule", order, "--blocking-w", 80) == 0
    assert "order.csv has 2 stages and" in capsys.readouterr().err


def test_actions_of_a_newer_torch_are_passed_over_with_one_line(
    profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    order = tmp_path / "order.csv"
    order.write_text("0F0,0WAIT_SEND_F0,0F1,0PREFETCH,0B0,0B1,0NEW_WAIT1\n1F0,1B0,1F1,1B1,1PREFETCH\n")
    assert called("solve", profile, "--schedule", order, "--blocking-w", 80) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if "passed over" in line]
    assert len(told) == 1
    assert "order.csv has actions that are not known here (PREFETCH, NEW_WAIT)" in told[0]


def test_a_plan_that_was_edited_or_is_of_another_version_is_refused(
    plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = plan.read_text()
    for found, put, why in (
        ('"version": 1', '"version": 99', "of version 99, and this joulewise reads 1 and 2"),
        ('"time_s": ', '"time_s": 1', "plan.json"),
    ):
        assert found in text
        plan.write_text(text.replace(found, put, 1))
        assert called("check", plan, "--gpu-name", "NVIDIA A100") == 2
        assert why in one_line(capsys)
    plan.write_text(text[: len(text) // 2])
    assert called("show", plan) == 2
    assert "it is not JSON, or cut short" in one_line(capsys)


def test_a_plan_of_another_model_must_not_be_used(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert called("check", plan, "--gpu-name", "NVIDIA A100", "--model", "huge") == 1
    assert "it is for tiny, and here is huge" in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["solve", "show", "query", "check", "xray"])
def test_a_directory_is_no_file_of_any_verb(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = {"solve": SOLVE, "query": ("--deadline", "1s")}.get(verb, ())
    assert called(verb, tmp_path, *flags) == 2
    assert "is a directory" in one_line(capsys)


def test_show_draws_the_pipeline_before_and_after(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert called("show", plan) == 0
    lines = capsys.readouterr().out.splitlines()
    ranks = [line for line in lines if line.startswith("rank ")]
    assert len(ranks) == 6
    assert set("".join(ranks[:3])) - set("rank 012") <= {"9", "·"}
    assert set("".join(ranks[3:])) & set("12345678") - set("012")
    assert all(len(line) <= 80 for line in lines)


def test_show_writes_a_page_and_a_picture(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, picture = tmp_path / "plan.html", tmp_path / "plan.png"
    assert called("show", plan, "--report", page, "--plot", picture, "--json") == 0
    assert json.loads(capsys.readouterr().out)["shown"]["saving"] > 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    html = page.read_text("utf-8")
    assert "http" not in html
    drawings = [
        ET.fromstring(part[: part.index("</svg>") + 6]) for part in ("<svg" + p for p in html.split("<svg")[1:])
    ]
    operations = [rect for rect in drawings[0].iter("rect") if rect.find("title") is not None]
    assert len(drawings) == 3
    assert len(operations) == 36


def test_a_query_finds_the_point_and_every_ranks_list(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    read = plan_files.read(plan)
    wanted = read.points[len(read.points) // 2]
    for flag, value in (("--deadline", wanted.time_s), ("--energy", wanted.energy_j), ("--power", wanted.power_w)):
        assert called("query", plan, flag, value, "--json") == 0
        said = json.loads(capsys.readouterr().out)
        assert said["time_s"] == wanted.time_s
        assert said["energy_j"] == wanted.energy_j
    assert [len(rank) for rank in said["ranks"]] == [12, 12, 12]
    assert said["ranks"][0][0]["kind"] == "forward"
    assert set(said["ranks"][0][0]["setting"]) == {"sm_mhz"}
    assert called("query", plan, "--deadline", "10s") == 0
    assert "energy" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("show", "--report", "plan.txt"), "is to be a page"),
        (("show", "--plot", "plan.txt"), "the name must end in"),
        (("show", "--report", "/nowhere/plan.html"), "cannot be written"),
        (("show", "--deadline", "1ms"), "no plan ends within 0.001 s: the fastest takes"),
        (("query",), "ask for one of --deadline, --energy and --power"),
        (("query", "--deadline", "1s", "--power", "1"), "ask for one of"),
        (("query", "--deadline", "1ms"), "no plan ends within"),
        (("query", "--energy", "1J"), "no plan needs only 1.000 J"),
        (("query", "--power", "1W"), "no plan draws only 1.00 W"),
        (("query", "--power", "1V"), "--power '1V' is no power"),
    ],
)
def test_what_cannot_be_shown_or_answered_is_one_line(
    plan: Path, args: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    verb, *flags = args
    assert called(verb, plan, *flags) == 2
    assert why in one_line(capsys)


def test_a_check_compares_what_is_stated(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert called("check", plan, "--gpu-name", "NVIDIA A100", "--model", "tiny", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["ok"] is True
    assert {each["what"]: each["ok"] for each in said["findings"]} == {
        "plan": True,
        "gpu": True,
        "driver": None,
        "model": True,
    }
    assert called("check", plan, "--gpu-name", "NVIDIA H100", "--model", "tiny") == 1
    shown = capsys.readouterr().out
    assert shown.startswith("This plan is not for here.")
    assert "it is for NVIDIA A100, and here is NVIDIA H100" in shown


def test_a_check_looks_at_the_gpus_here(plan: Path, recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert called("check", plan, "--gpu", f"replay:{recording}", "--json") == 1
    said = json.loads(capsys.readouterr().out)
    found = {each["what"]: each for each in said["findings"]}
    assert found["gpu"]["ok"] is False
    assert "NVIDIA H200" in found["gpu"]["says"]


@pytest.mark.parametrize("verb", ["show", "query", "check"])
@pytest.mark.parametrize("content", [None, b"", b"{", b"stage,instruction\n", b'{"format": "joulewise-plan"}'])
def test_what_is_no_plan_is_one_line(
    tmp_path: Path, verb: str, content: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    if content is not None:
        path.write_bytes(content)
    assert called(verb, path, *(("--deadline", "1s") if verb == "query" else ())) == 2
    assert "plan.json" in one_line(capsys)


def test_ctrl_c_ends_it_without_a_trace(profile: Path, environ: dict[str, str]) -> None:
    large = ("--schedule", "1f1b", "--microbatches", "9000", "--blocking-w", "80")
    pipe = subprocess.PIPE
    started = preloaded.Command("plan", "solve", profile, *large, env=environ, stdout=pipe, stderr=pipe)
    assert started.stderr is not None
    assert "54000 operations: this may take a while" in started.stderr.readline()
    os.kill(started.pid, signal.SIGINT)
    out, err = started.communicate(timeout=120)
    assert (started.returncode, out) == (130, "")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("text", "value"), [("9.5", 9.5), ("9.5s", 9.5), ("850 ms", 0.85), ("1e-1", 0.1), ("2min", 120.0), (".5s", 0.5)]
)
def test_times_are_read_as_people_write_them(text: str, value: float) -> None:
    assert plan_amounts.seconds("--deadline", text) == pytest.approx(value)


def test_energies_and_powers_are_read_as_people_write_them() -> None:
    assert plan_amounts.joules("--energy", "3.2MJ") == pytest.approx(3.2e6)
    assert plan_amounts.joules("--energy", "0.5kWh") == pytest.approx(1.8e6)
    assert plan_amounts.watts("--power", "20 kW") == pytest.approx(2e4)
    for text in ("0", "-1", "1mJ", "nan", "inf", "", "1e999", "1 s s"):
        with pytest.raises(BadSpec, match="is no "):
            plan_amounts.joules("--energy", text)


def test_clocks_have_colours_and_digits_from_the_lowest_to_the_highest() -> None:
    scale = Scale([Setting(sm_mhz=900), Setting(sm_mhz=1410), Setting()])
    assert [scale.digit(Setting(sm_mhz=mhz)) for mhz in (900, 1155, 1410)] == ["1", "5", "9"]
    assert scale.digit(Setting()) == "9"
    assert scale.named(0.0) == "900 MHz"
    assert len({hue(step / 8) for step in range(9)}) == 9
    assert hue(-1) == hue(0)
    assert hue(2) == hue(1)
    assert ink_on(0.0) != ink_on(1.0)
    limits = Scale([Setting(power_limit_w=300), Setting(power_limit_w=400)])
    assert limits.named(1.0) == "400 W"
    assert Scale([Setting(sm_mhz=900)]).digit(Setting(sm_mhz=900)) == "9"


def test_a_plan_with_launches_is_shown_queried_and_checked_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "partitioned.json"
    plan_files.write(partitioned(made_up_plan()), path)
    page = tmp_path / "page.html"
    assert called("show", path, "--report", page) == 0
    shown = capsys.readouterr().out
    assert "attention rope×15, mlp norm×6" in shown
    assert "attention rope×15, mlp norm×6" in page.read_text()
    assert called("query", path, "--deadline", "100s", "--json") == 0
    steps = json.loads(capsys.readouterr().out)["ranks"][0]
    assert "launches" not in steps[0]  # the thriftiest runs at the lowest clock, where nothing is launched
    assert called("query", path, "--power", "100kW", "--json") == 0
    steps = json.loads(capsys.readouterr().out)["ranks"][0]
    assert steps[0]["launches"][0] == {"part": "attention", "slot": "rope", "sms": 15}
    assert called("check", path, "--gpu", "sim:a100-sxm", "--model", "tiny") == 1  # it is for another A100
    assert "communication is launched" in " ".join(capsys.readouterr().out.split())
