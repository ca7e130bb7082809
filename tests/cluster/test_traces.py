"""Traces: whose file it is shows from its header, and what is wrong with one is said by file, line and column."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from joulewise.cluster.traces import TraceJob, read_trace
from joulewise.core.errors import BadSpec


def written(folder: Path, *lines: str, name: str = "trace.csv") -> Path:
    path = folder / name
    text = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return path


def test_our_own_columns_are_read_and_sorted_by_submission(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "name,submitted_s,gpus,duration_s,model,batch,iterations,deadline_s,tenant",
        "late,20.5,8,3600,bert,64,1e3,5000,ml",
        "early,10,1,60,,,,,",
    )
    assert read_trace(path) == (
        TraceJob("early", 10.0, 1, 60.0),
        TraceJob("late", 20.5, 8, 3600.0, "bert", 64, 1000.0, 5000.0, "ml"),
    )


def test_a_few_columns_are_enough_and_jobs_without_a_name_get_one(tmp_path: Path) -> None:
    path = written(tmp_path, "gpus,submitted_s,duration_s,colour", "2,0,60,red", "", "4,5,90,blue", name="t.csv.gz")
    assert read_trace(path) == (TraceJob("job-2", 0.0, 2, 60.0), TraceJob("job-4", 5.0, 4, 90.0))


def test_dates_become_seconds_since_the_first(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "timestamp,duration,num_gpus,gpu_time,cluster",
        "2017-10-09 07:01:55,66.0,1,66.0,11cb48",
        "2017-10-09 07:00:55,5.0,2,10.0,6214e9",
        "",
    )
    first, second = read_trace(path)
    assert (first.submitted_s, first.tenant, second.submitted_s, second.tenant) == (0.0, "6214e9", 60.0, "11cb48")
    assert read_trace(path, tenant="11cb48") == (second,)
    with pytest.raises(BadSpec, match="no job of tenant 'x'; there are 11cb48, 6214e9"):
        read_trace(path, tenant="x")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["job_id,submission_time,duration"], r"line 1: there is no column 'num_gpu'.*add it, or use the columns name"),
        (["a,b", "1,2"], r"line 1: there is no column 'submitted_s' and 'gpus' and 'duration_s'"),
        (["submitted_s,gpus,duration_s"], r"holds no job below its header"),
        ([], r"line 1: .*the columns are none"),
        (["submitted_s,gpus,duration_s", "0,1,5", "x,1,5"], r"line 3: column 'submitted_s' is 'x', which is not a num"),
        (["submitted_s,gpus,duration_s", "0,1.5,5"], r"line 2: column 'gpus' is '1.5', which is not a number of GPUs"),
        (["submitted_s,gpus,duration_s", "0,0,5"], r"column 'gpus' is '0'"),
        (["submitted_s,gpus,duration_s", "0,1,-5"], r"column 'duration_s' is '-5', .*above 0"),
        (["submitted_s,gpus,duration_s", "nan,1,5"], r"column 'submitted_s' is 'nan'"),
        (["submitted_s,gpus,duration_s", "0"], r"column 'duration_s' is empty and no model is named"),
        (["submitted_s,gpus,duration_s", ",1,5"], r"column 'submitted_s' is empty; fill it in"),
        (["time,num_replicas,application", "0,,bert"], r"line 2: column 'num_replicas' is empty"),
        (["submitted_s,gpus,duration_s", "0,1,5", "2017-10-09 07:01:55,1,5"], r"line 3: .*mixes dates and seconds"),
        (["name,submitted_s,gpus,duration_s", "a,0,1,5", "a,1,1,5"], r"line 3: column 'name' is 'a', as in line 2"),
    ],
)
def test_what_cannot_be_used_is_said_with_its_place_and_the_way_out(
    tmp_path: Path, lines: list[str], said: str
) -> None:
    path = written(tmp_path, *lines)
    with pytest.raises(BadSpec, match=said) as error:
        read_trace(path)
    assert str(error.value).startswith(str(path))


def test_a_file_that_is_no_table_is_said_to_be_none(tmp_path: Path) -> None:
    broken = tmp_path / "broken.csv.gz"
    broken.write_bytes(gzip.compress(b"submitted_s,gpus,duration_s\n" * 100)[:40])
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00\x80")
    for path in (broken, binary, tmp_path / "absent.csv", tmp_path):
        with pytest.raises(BadSpec, match=r"cannot be read: .*give a CSV file"):
            read_trace(path)


def test_the_public_traces_are_what_their_description_says(data: Path) -> None:
    folder = data / "cluster"
    flow = read_trace(folder / "elasticflow" / "elastic" / "cluster10.csv")
    hours = sum((job.duration_s or 0.0) * job.gpus for job in flow) / 3600
    assert (len(flow), round(hours)) == (260, 4023)
    assert all(job.model and job.batch and job.iterations and job.deadline_s for job in flow)
    raw = read_trace(folder / "elasticflow" / "raw" / "cluster10.csv")
    assert [(job.name, job.submitted_s, job.gpus) for job in raw] == [
        (job.name, job.submitted_s, job.gpus) for job in flow
    ]
    pollux = read_trace(folder / "pollux" / "workloads" / "workload-6.csv")
    assert (len(pollux), pollux[0]) == (160, TraceJob("cifar10-0", 53.0, 6, None, "cifar10", 2048))
    philly = read_trace(folder / "pollux" / "traces" / "philly.csv.gz", tenant="ed69ec")
    assert len(philly) == 1137


@pytest.mark.parametrize(
    "lines",
    [
        [",".join(f"{'column' * 20}{number}" for number in range(500))],
        ["submitted_s,gpus,duration_s", f"{'x' * 50_000},1,5"],
        ["name,submitted_s,gpus,duration_s", *(f"{'a' * 50_000},{second},1,5" for second in (0, 1))],
    ],
)
def test_whatever_a_file_holds_what_is_said_of_it_is_a_line_to_read(lines, tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(BadSpec) as caught:
        read_trace(path)
    assert len(str(caught.value)) < 1200 + len(str(path))
