"""Which GPUs are *mine*: every form of the lists, times Slurm, times torchrun (scenario R21)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.device.gpu import GpuInfo
from joulewise.device.visible import visible
from tests.scenario_table import Shown

A = "GPU-8f3a1c00-0000-4000-8000-00000000000a"
B = "GPU-8f3b2c00-0000-4000-8000-00000000000b"
C = "GPU-11112c00-0000-4000-8000-00000000000c"
D = "GPU-22222c00-0000-4000-8000-00000000000d"
FOUR = (A, B, C, D)
MIG_A = "MIG-aaaa0000-0000-5000-8000-000000000001"
MIG_A2 = "MIG-aaab0000-0000-5000-8000-000000000002"
MIG_C = "MIG-cccc0000-0000-5000-8000-000000000003"
MIG_PARENTS = {MIG_A: A, MIG_A2: A, MIG_C: C}


def node(*uuids: str, names: tuple[str, ...] = (), backend: str = "nvml") -> list[GpuInfo]:
    """GPUs as a backend lists them, deliberately not in bus order."""
    infos = [
        GpuInfo(
            uuid=uuid,
            name=names[i] if names else "NVIDIA H200",
            index=i,
            backend=backend,
            pci_bus_id=f"00000000:{i + 1:02X}:00.0",
        )
        for i, uuid in enumerate(uuids)
    ]
    return infos[1:] + infos[:1]


CUDA_FORMS: list[tuple[str | None, tuple[str, ...]]] = [
    (None, FOUR),
    ("", ()),
    ("  ", ()),
    ("0", (A,)),
    ("0,1,2,3", FOUR),
    ("1,0", (B, A)),
    ("3, 1", (D, B)),
    (A, (A,)),
    ("GPU-8f3a", (A,)),
    (f"GPU-2,{A}", (D, A)),
    ("GPU-8f3", ()),  # two GPUs have this prefix
    ("GPU-11,GPU-8f3", (C,)),
    ("GPU-ffff", ()),
    (f"{C},GPU-ffff,{D}", (C,)),
    (f"{A},{A}", ()),
    (f"{A},GPU-8f3a", ()),  # the same GPU twice, under two names
    (f"{A},1", (A,)),
    ("1,GPU-8f3a", (B,)),
    (MIG_A, (A,)),
    ("MIG-cccc", (C,)),
    (f"{MIG_A},{MIG_A2}", (A,)),  # two slices of one GPU: one power sensor
    (f"{MIG_C},{MIG_A}", (C, A)),
    (f"{MIG_A},{B}", (A,)),
    ("MIG-aaa", ()),  # two instances have this prefix
    ("MIG-ffff", ()),
    (f"MIG-{B}/3/0", (B,)),
    ("MIG-GPU-ffff/3/0", ()),
    ("-1", ()),
    ("0,-1,2", (A,)),
    ("0,0", ()),
    ("2,1,2", ()),
    ("0,9,1", (A,)),
    ("0,9,0", ()),
    ("4", ()),
    ("1gpu2,2x", (B, C)),
    ("+2", (C,)),
    ("2,", (C,)),
    (",2", ()),
    ("NoDevFiles", ()),  # Slurm's word for a job without GPUs
    ("all", ()),
]

SLURM_FORMS: list[dict[str, str]] = [
    {},
    {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0,1,2,3"},
    {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "2,3", "SLURM_STEP_GPUS": "3"},
]

RANKS: list[dict[str, str]] = [
    {},
    {"RANK": "8", "LOCAL_RANK": "0", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "2"},
    {"RANK": "9", "LOCAL_RANK": "1", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "2"},
    {"RANK": "5", "LOCAL_RANK": "5", "WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "6"},
]


@pytest.mark.parametrize("order", [None, "PCI_BUS_ID", "FASTEST_FIRST"])
@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("slurm", SLURM_FORMS)
@pytest.mark.parametrize(("cuda", "expected"), CUDA_FORMS)
def test_every_form_times_slurm_times_torchrun_gives_the_right_gpus(
    cuda: str | None,
    expected: tuple[str, ...],
    slurm: dict[str, str],
    rank: dict[str, str],
    order: str | None,
    scenario: Callable[..., Shown],
) -> None:
    scenario("R21", "CUDA_VISIBLE_DEVICES × Slurm × torchrun × order", criterion="right UUIDs in every row")
    environ = {**slurm, **rank}
    if cuda is not None:
        environ["CUDA_VISIBLE_DEVICES"] = cuda
    elif "SLURM_STEP_GPUS" in slurm:
        expected = (D,)
    if order is not None:
        environ["CUDA_DEVICE_ORDER"] = order

    mine = visible(environ, node(*FOUR), MIG_PARENTS)

    assert mine.node_uuids == expected
    if rank and len(expected) > 1:
        expected = (expected[int(rank["LOCAL_RANK"]) % len(expected)],)
    assert mine.uuids == expected
    assert mine.certain
    assert mine.why
    assert "\n" not in mine.why


@pytest.mark.parametrize(
    ("environ", "seen", "expected"),
    [
        # No confinement: Slurm's numbers are the node's, in bus order.
        ({"SLURM_JOB_GPUS": "1,3"}, FOUR, (B, D)),
        ({"SLURM_JOB_GPUS": "2-3"}, FOUR, (C, D)),
        ({"SLURM_JOB_GPUS": "1,3", "SLURM_STEP_GPUS": "3"}, FOUR, (D,)),
        ({"SLURM_JOB_GPUS": "", "SLURM_STEP_GPUS": ""}, FOUR, FOUR),
        # The cgroup hides the others: all that is left is ours, whatever the numbers say.
        ({"SLURM_JOB_GPUS": "6,7"}, (C, D), (C, D)),
        ({"SLURM_JOB_GPUS": "0,1"}, (C, D), (C, D)),
        ({"SLURM_JOB_GPUS": "6,7", "SLURM_STEP_GPUS": "7"}, (C, D), (D,)),
        ({"SLURM_JOB_GPUS": "6,7", "SLURM_STEP_GPUS": "6"}, (C, D), (C,)),
        # Slurm sets CUDA's variable itself, counted inside the cgroup.
        ({"SLURM_JOB_GPUS": "6,7", "CUDA_VISIBLE_DEVICES": "0,1"}, (C, D), (C, D)),
        ({"SLURM_JOB_GPUS": "6,7", "CUDA_VISIBLE_DEVICES": "1"}, (C, D), (D,)),
        # One task a GPU without a launcher: by the task's local id.
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x2)", "SLURM_LOCALID": "2"}, FOUR, (C,)),
        ({"SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_LOCALID": "0"}, FOUR, FOUR),
        ({"SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_LOCALID": "1"}, FOUR, FOUR),
        ({"SLURM_STEP_TASKS_PER_NODE": "4", "SLURM_LOCALID": "0", "LOCAL_RANK": "3"}, FOUR, (D,)),
        # Containers: the runtime has already hidden the rest.
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, FOUR, FOUR),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, (B,), (B,)),
        ({"NVIDIA_VISIBLE_DEVICES": "2,3"}, (C, D), (C, D)),
        ({"NVIDIA_VISIBLE_DEVICES": f"{C},{D}"}, (C, D), (C, D)),
        # … or has not (a privileged container sees the whole node).
        ({"NVIDIA_VISIBLE_DEVICES": "2,3"}, FOUR, (C, D)),
        ({"NVIDIA_VISIBLE_DEVICES": C}, FOUR, (C,)),
        ({"NVIDIA_VISIBLE_DEVICES": "2,3", "CUDA_VISIBLE_DEVICES": "0"}, FOUR, (A,)),
        # torchrun
        ({"LOCAL_RANK": "1"}, FOUR, (B,)),
        ({"LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "3,2"}, FOUR, (C,)),
        ({"LOCAL_RANK": "6"}, (B,), (B,)),
        ({"LOCAL_RANK": "junk"}, FOUR, FOUR),
    ],
)
def test_schedulers_containers_and_launchers_give_the_right_gpus(
    environ: dict[str, str], seen: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert visible(environ, node(*seen)).uuids == expected


MIXED = ("NVIDIA A40", "NVIDIA A40", "NVIDIA H200", "NVIDIA A40")


def test_numbers_on_a_mixed_node_are_certain_only_in_bus_order() -> None:
    gpus = node(*FOUR, names=MIXED)
    guess = visible({"CUDA_VISIBLE_DEVICES": "0"}, gpus)
    assert not guess.certain
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in guess.why
    sure = visible({"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, gpus)
    assert sure.certain
    assert sure.uuids == (A,)


@pytest.mark.parametrize("value", ["3,2,1,0", A, f"{D},{A}"])
def test_all_numbers_or_names_are_certain_even_on_a_mixed_node(value: str) -> None:
    assert visible({"CUDA_VISIBLE_DEVICES": value}, node(*FOUR, names=MIXED)).certain


def test_slurm_numbers_that_point_outside_what_is_seen_are_said_to_be_uncertain() -> None:
    mine = visible({"SLURM_JOB_GPUS": "7"}, node(*FOUR))
    assert mine.uuids == FOUR
    assert not mine.certain


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, FOUR),
        ({"ROCR_VISIBLE_DEVICES": "2,3"}, (C, D)),
        ({"HIP_VISIBLE_DEVICES": "1,0"}, (B, A)),
        ({"CUDA_VISIBLE_DEVICES": "1"}, (B,)),
        ({"HIP_VISIBLE_DEVICES": "2", "CUDA_VISIBLE_DEVICES": "1"}, (C,)),
        ({"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "1"}, (D,)),
        ({"ROCR_VISIBLE_DEVICES": "3,2", "HIP_VISIBLE_DEVICES": "0,1"}, (D, C)),
        ({"ROCR_VISIBLE_DEVICES": "2", "HIP_VISIBLE_DEVICES": "0,1"}, ()),
        ({"ROCR_VISIBLE_DEVICES": C, "HIP_VISIBLE_DEVICES": "0"}, (C,)),
        ({"ROCR_VISIBLE_DEVICES": ""}, ()),
        ({"SLURM_JOB_GPUS": "1"}, (B,)),
        ({"HIP_VISIBLE_DEVICES": "2,3", "LOCAL_RANK": "1"}, (D,)),
    ],
)
def test_rocm_applies_rocr_first_and_hip_inside_it(environ: dict[str, str], expected: tuple[str, ...]) -> None:
    assert visible(environ, node(*FOUR, backend="amd")).uuids == expected


def test_each_vendor_obeys_its_own_variables() -> None:
    gpus = node(A, B) + node(C, D, backend="amd")
    assert visible({"CUDA_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"}, gpus).uuids == (B, C)


def test_no_gpu_is_no_gpu() -> None:
    assert visible({}, []).uuids == ()
    assert visible({"CUDA_VISIBLE_DEVICES": "0", "LOCAL_RANK": "1"}, []).uuids == ()


entries = st.one_of(
    st.integers(-2, 6).map(str),
    st.sampled_from([*FOUR, *MIG_PARENTS, "GPU-8f3", "GPU-", "MIG-", "", " ", "x", "1x"]),
    st.text(max_size=6),
)


@given(
    cuda=st.none() | st.lists(entries, max_size=5).map(",".join),
    slurm=st.none() | st.lists(entries, max_size=3).map(",".join),
    step=st.none() | st.lists(entries, max_size=3).map(",".join),
    container=st.none() | st.lists(entries, max_size=3).map(",".join),
    rank=st.none() | entries,
    count=st.integers(0, 4),
)
def test_any_environment_gives_a_set_of_existing_gpus_and_a_reason(
    cuda: str | None,
    slurm: str | None,
    step: str | None,
    container: str | None,
    rank: str | None,
    count: int,
) -> None:
    names = {
        "CUDA_VISIBLE_DEVICES": cuda,
        "SLURM_JOB_GPUS": slurm,
        "SLURM_STEP_GPUS": step,
        "NVIDIA_VISIBLE_DEVICES": container,
        "LOCAL_RANK": rank,
    }
    environ = {name: value for name, value in names.items() if value is not None}
    mine = visible(environ, node(*FOUR[:count]), MIG_PARENTS)
    assert len(set(mine.uuids)) == len(mine.uuids)
    assert set(mine.uuids) <= set(mine.node_uuids) <= set(FOUR[:count])
    assert mine.why
