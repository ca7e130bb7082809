"""Profiler traces are read as they are; what is no trace, or half of one, is said."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from joulewise.core.errors import BadSpec
from joulewise.plan import trace, trace_events
from joulewise.plan.trace_kinds import Kind


def event(category: str, name: str, start: float, length: float, tid: Any = 1, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": tid, "ts": start, "dur": length, "args": args}


def kernel(name: str, start: float, length: float, *, stream: int = 7, call: int = -1, **args: Any) -> dict[str, Any]:
    return event("kernel", name, start, length, stream, device=0, stream=stream, correlation=call, **args)


GPU = {"deviceProperties": [{"id": 0, "name": "NVIDIA H200"}], "distributedInfo": {"rank": 1, "world_size": 4}}


def written(path: Path, events: list[dict[str, Any]], **head: Any) -> Path:
    path.write_text(json.dumps({"schemaVersion": 1, **head, "traceEvents": events, "traceName": path.name}))
    return path


def test_kernels_have_their_launches_and_the_file_names_gpu_and_rank(tmp_path):
    events = [
        event("cuda_runtime", "cudaLaunchKernel", 90.0, 4.0, correlation=5),
        kernel("ampere_sgemm_128x64", 100.0, 50.0, call=5),
        kernel("ncclDevKernel_AllReduce_Sum_f32", 120.0, 80.0, stream=9, call=6, **{"Process Group Ranks": "[0, 1]"}),
        event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 10.0, 5.0, 11, device=0, stream=11, correlation=7),
        {"ph": "M", "name": "process_name", "ts": 1.0, "pid": 0, "tid": 0, "args": {"name": "python"}},
    ]
    read = trace.read(written(tmp_path / "t.json", events, **GPU))
    assert (read.gpu, read.rank, read.world, read.on_cpu) == ("NVIDIA H200", 1, 4, False)
    copy, gemm, reduce = read.lanes[0].spans
    assert (copy.kind, gemm.kind, reduce.kind) == (Kind.COPY, Kind.COMPUTE, Kind.COMMUNICATION)
    assert (copy.start_s, gemm.start_s, gemm.duration_s) == pytest.approx((0.0, 90e-6, 50e-6))
    assert gemm.launched_s == pytest.approx(80e-6)
    assert reduce.launched_s is None
    assert reduce.group == "[0, 1]"


def test_waits_between_streams_and_of_the_host_are_read_where_the_trace_has_them(tmp_path):
    waiting = {"stream": 7, "correlation": 12, "wait_on_stream": 9, "wait_on_cuda_event_record_corr_id": 8}
    unknown = {"stream": 7, "correlation": 13, "wait_on_stream": -1, "wait_on_cuda_event_record_corr_id": -1}
    events = [
        kernel("gemm", 100.0, 50.0, call=5),
        event("cuda_sync", "Stream Wait Event", 100.0, 0.0, 7, device=0, **waiting),
        event("cuda_sync", "Stream Wait Event", 100.0, 0.0, 7, device=0, **unknown),
        event("cuda_runtime", "cudaDeviceSynchronize", 120.0, 400.0, correlation=20),
        event("cuda_runtime", "cudaStreamSynchronize", 600.0, 2.0, correlation=21),
    ]
    read = trace.read(written(tmp_path / "t.json", events, **GPU))
    assert read.lanes[0].waits == (trace.StreamWait(7, 12, 9, 8),)
    assert read.blocks == (pytest.approx((20e-6, 420e-6)),)


def test_without_a_gpu_operators_and_gloo_stand_in_each_with_its_own_time(tmp_path):
    events = [
        event("user_annotation", "ProfilerStep#3", 0.0, 100.0),
        event("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", 10.0, 40.0),
        event("cpu_op", "aten::mm", 12.0, 30.0),
        event("cpu_op", "aten::resolve_conj", 14.0, 1.0),
        event("cpu_op", "c10d::allreduce_", 45.0, 3.0),
        event("user_annotation", "gloo:all_reduce", 47.0, 30.0, 2),
        event("cpu_op", "aten::copy_", 50.0, 5.0, 2),
        event("cpu_op", "_c10d_functional::wait_tensor", 60.0, 17.0),
    ]
    read = trace.read(written(tmp_path / "t.json", events))
    assert read.on_cpu
    assert [(mark.number, mark.end_s) for mark in read.marks] == [(3, pytest.approx(100e-6))]
    spans = [(span.name, round(span.start_s * 1e6), round(span.end_s * 1e6)) for span in read.lanes[0].spans]
    assert spans == [
        ("aten::mm", 12, 14),
        ("aten::resolve_conj", 14, 15),
        ("aten::mm", 15, 42),
        ("gloo:all_reduce", 47, 77),
    ]
    assert read.lanes[0].spans[-1].launched_s == pytest.approx(45e-6)


def test_a_packed_trace_a_bare_list_and_pieces_of_any_size_read_the_same(tmp_path, monkeypatch):
    events = [kernel(f"gemm_{number}", 10.0 * number, 5.0, call=number) for number in range(50)]
    plain = trace.read(written(tmp_path / "a.json", events, **GPU))
    packed = tmp_path / "b.trace"
    packed.write_bytes(gzip.compress((tmp_path / "a.json").read_bytes()))
    bare = tmp_path / "c.json"
    bare.write_text(json.dumps(events))
    monkeypatch.setattr(trace_events, "_CHUNK", 37)
    for path in (tmp_path / "a.json", packed, bare):
        assert trace.read(path).lanes == plain.lanes


@pytest.mark.parametrize("keep", [0.02, 0.5, 0.999])
@pytest.mark.parametrize("pack", [False, True])
def test_a_truncated_trace_is_said_to_be(tmp_path, keep, pack):
    whole = json.dumps({**GPU, "traceEvents": [kernel("gemm", 10.0 * i, 5.0) for i in range(400)], "traceName": "t"})
    data = gzip.compress(whole.encode()) if pack else whole[: whole.rindex("]")].encode()
    path = tmp_path / "t.json"
    path.write_bytes(data[: int(keep * len(data))])
    with pytest.raises(BadSpec, match=r"truncated|no profiler trace"):
        trace.read(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("time,power\n1,2\n", "is no JSON"),
        ('{"version": 1, "points": []}', 'has no "traceEvents"'),
        ('{"traceEvents": []}', "no kernel and no operator"),
        ('{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "gemm"}]}', "damaged at the event .* has no 'ts'"),
        ('{"traceEvents": [{"ph": "X", "cat": "kernel", "ts": NaN, "dur": 1}]}', "begins at nan"),
        ('{"traceEvents": [{"ph": "X", "cat": "kernel", "ts": 1, "dur": -5}]}', "lasts -5 µs"),
        ('{"traceEvents": [{"ph": "X", "cat": "kernel", "ts": 1, "args": {"stream": "x"}}]}', "invalid literal"),
        ('{"traceEvents": [{"ph": "X", "cat": "kernel", "ts": 1, "args": [1]}]}', "is damaged"),
    ],
)
def test_what_is_no_trace_is_refused_with_the_reason(tmp_path, text, says):
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(BadSpec, match=says):
        trace.read(path)


def test_a_file_that_is_not_there_or_damaged_in_its_middle_is_one_clear_error(tmp_path, monkeypatch):
    with pytest.raises(BadSpec, match="cannot be read: no such file"):
        trace.read(tmp_path / "none.json")
    monkeypatch.setattr(trace_events, "_LONGEST_EVENT", 4000)
    broken = written(tmp_path / "t.json", [kernel("gemm", 10.0 * i, 5.0) for i in range(400)], **GPU)
    broken.write_text(broken.read_text().replace('"dur": 5.0', '"dur": ,', 30))
    with pytest.raises(BadSpec, match="damaged: event 1"):
        trace.read(broken)
