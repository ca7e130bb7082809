from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.core.errors import BadRecording, BadSpec, JoulewiseError, NoGpu
from joulewise.core.timeline import VirtualTime, WallTime
from joulewise.device.discover import Spec, _picked, find, parse
from joulewise.device.gpu import Gpu, GpuInfo
from joulewise.model import catalog
from tests.device import recorded


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("nvml", Spec("nvml")),
        (" nvml ", Spec("nvml")),
        ("nvml:all", Spec("nvml", picks=())),
        ("nvml:0", Spec("nvml", picks=(0,))),
        ("nvml:0-3", Spec("nvml", picks=(0, 1, 2, 3))),
        ("nvml:3, 0-1", Spec("nvml", picks=(3, 0, 1))),
        ("nvml:GPU-3f2a", Spec("nvml", picks=("GPU-3f2a",))),
        ("nvml:GPU-3f2a,1", Spec("nvml", picks=("GPU-3f2a", 1))),
        ("amd", Spec("amd")),
        ("amd:0", Spec("amd", picks=(0,))),
        ("sim", Spec("sim", models=("h200",))),
        ("sim:a100", Spec("sim", models=("a100",))),
        ("sim:h200*8", Spec("sim", models=("h200",) * 8)),
        ("sim:a100*2, h200", Spec("sim", models=("a100", "a100", "h200"))),
        ("replay:run.jsonl", Spec("replay", path=Path("run.jsonl"))),
        ("replay:/tmp/a,b:c.jsonl", Spec("replay", path=Path("/tmp/a,b:c.jsonl"))),
    ],
)
def test_every_form_of_the_grammar_is_understood(text: str, spec: Spec) -> None:
    assert parse(text) == spec
    assert parse(str(spec)) == spec


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("", "nvml, amd, sim, replay"),
        ("cuda:0", "nvml, amd, sim, replay"),
        ("0-3", "'nvml:0-3'"),
        ("NVML:0", "nvml, amd, sim, replay"),
        ("nvml:", "ends after the colon"),
        ("nvml:x", "no number"),
        ("nvml:3-1", "write '1-3'"),
        ("nvml:1,1", "twice"),
        ("nvml:0-2,1", "twice"),
        ("nvml:-1", "no number"),
        ("nvml:0,", "no number"),
        ("nvml:MIG-1234", "slice"),
        ("amd:0-", "no number"),
        ("sim:", "ends after the colon"),
        ("sim:h200*0", "'sim:h200*8'"),
        ("sim:h200*x", "'sim:h200*8'"),
        ("sim:*3", "'sim:h200*8'"),
        ("sim:h200,,a100", "'sim:h200*8'"),
        ("sim:h200*65", "at most 64"),
        ("replay", "names no file"),
        ("replay:", "ends after the colon"),
    ],
)
def test_a_bad_specification_is_one_line_with_the_way_out(text: str, hint: str) -> None:
    with pytest.raises(BadSpec) as caught:
        parse(text)
    assert hint in str(caught.value)
    assert "\n" not in str(caught.value)


@given(
    st.text(max_size=30)
    | st.sampled_from(["nvml:", "sim:", "amd:", "replay:"]).flatmap(
        lambda head: st.text("0123456789-,*h2GPUx ", max_size=12).map(lambda tail: head + tail)
    )
)
def test_any_text_is_understood_or_refused_in_our_own_words(text: str) -> None:
    try:
        spec = parse(text)
    except BadSpec:
        return
    assert parse(str(spec)) == spec


def test_an_unknown_model_names_the_known_ones() -> None:
    with pytest.raises(BadSpec, match=r"'c64'.*h200"):
        find("sim:c64", time=VirtualTime())


def test_virtual_gpus_live_on_the_given_time_with_names_of_their_own() -> None:
    time = VirtualTime(5.0)
    gpus = find("sim:a100*2,h200", time=time)
    assert [gpu.info.name for gpu in gpus] == [catalog.load(name).name for name in ("a100", "a100", "h200")]
    assert [gpu.info.index for gpu in gpus] == [0, 1, 2]
    assert len({gpu.info.uuid for gpu in gpus}) == 3
    assert all(gpu.time is time for gpu in gpus)
    assert isinstance(find("sim")[0].time, WallTime)


def test_a_recording_gives_all_its_gpus_started_as_one(tmp_path: Path) -> None:
    recorded.write(tmp_path / "run.jsonl")
    time = VirtualTime()
    gpus = find(f"replay:{tmp_path / 'run.jsonl'}", time=time)
    time.sleep(3.0)
    assert [gpu.read().power_w for gpu in gpus] == [500.0, 550.0]


def test_a_missing_recording_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(BadRecording, match="no such file or directory; make a recording"):
        find(f"replay:{tmp_path / 'absent.jsonl'}")


def some_gpus() -> list[Gpu]:
    uuids = ("GPU-aa11", "GPU-aa22", "GPU-bb33")
    return [recorded.InfoOnly(GpuInfo(uuid=uuid, name="x", index=i, backend="nvml")) for i, uuid in enumerate(uuids)]


def test_picks_are_taken_in_their_order() -> None:
    gpus = some_gpus()
    assert _picked("nvml:2,0", (2, 0), gpus) == [gpus[2], gpus[0]]
    assert _picked("nvml:GPU-bb,1", ("GPU-bb", 1), gpus) == [gpus[2], gpus[1]]
    assert _picked("nvml:all", (), gpus) == gpus


@pytest.mark.parametrize(
    ("picks", "kind", "words"),
    [
        ((3,), NoGpu, "there are 0 (GPU-aa11"),
        (("GPU-cc",), NoGpu, "no GPU"),
        (("GPU-aa",), NoGpu, "several GPUs"),
        ((0, "GPU-aa11"), BadSpec, "twice"),
    ],
)
def test_picks_that_match_none_or_several_say_what_there_is(
    picks: tuple[int | str, ...], kind: type[JoulewiseError], words: str
) -> None:
    with pytest.raises(kind) as caught:
        _picked("nvml:…", picks, some_gpus())
    assert words in str(caught.value)
