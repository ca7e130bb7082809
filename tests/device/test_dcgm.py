import pytest

from joulewise.device.dcgm import METRICS, POWER, selector, whose

BASE = {"UUID": "GPU-1", "modelName": "NVIDIA H200", "Hostname": "node1", "gpu": "3", "instance": "node1:9400"}


@pytest.mark.parametrize(
    ("labels", "job"),
    [
        ({}, ""),
        ({"hpc_job": "4711"}, "4711"),
        ({"exported_namespace": "team-a", "exported_pod": "bert-worker-3"}, "team-a/bert"),
        ({"exported_pod": "bert-0", "pod": "nvidia-dcgm-exporter-abcde"}, "bert"),
        ({"exported_pod": "resnet-50-7d9f8b6c5d-x2x4z"}, "resnet-50"),
        ({"exported_pod": "sweep-12-x2x4z"}, "sweep"),
        ({"exported_pod": "gpt-1-0"}, "gpt-1"),
        ({"namespace": "b", "pod": "train-x2x4z", "container": "main"}, "b/train"),
        ({"pod": "nvidia-dcgm-exporter-x2x4z", "container": "nvidia-dcgm-exporter"}, ""),
        ({"pod": "x2x4z-whatever", "container": "dcgm-exporter"}, ""),
        ({"hpc_job": "", "exported_pod": ""}, ""),
        ({"exported_pod": "<script>alert(1)</script>"}, "<script>alert(1)</script>"),
    ],
)
def test_whose_work_it_was_is_read_from_the_labels_that_exporters_use(labels, job):
    assert whose({**BASE, **labels}).job == job


def test_other_labels_tell_jobs_apart_where_they_are_named():
    labels = {**BASE, "user": "ada", "team": "x", "hpc_job": "4711"}
    assert whose(labels, by=("team", "user")).job == "x/ada"
    assert whose(BASE, by=("user",)).job == ""


def test_a_gpu_is_known_by_its_uuid_else_by_host_and_number():
    assert whose(BASE).gpu == "GPU-1"
    assert whose({"Hostname": "node1", "gpu": "3"}).gpu == "node1/3"
    assert whose({"instance": "node1:9400", "device": "nvidia3"}).gpu == "node1:9400/nvidia3"


def test_an_instance_of_a_split_gpu_is_told():
    assert whose({**BASE, "GPU_I_ID": "3"}).split
    assert not whose({**BASE, "GPU_I_ID": ""}).split


def test_metrics_have_names_of_their_own_and_a_selector():
    assert len({metric.name for metric in METRICS}) == len({metric.series for metric in METRICS}) == len(METRICS)
    assert selector(POWER, 'cluster="a"') == 'DCGM_FI_DEV_POWER_USAGE{cluster="a"}'


def test_no_board_runs_at_nothing():
    """Exporters write 0 for a power, a clock or a limit that they could not read; how busy a GPU is may be 0."""
    assert {metric.name for metric in METRICS if metric.least > 0.0} == {"power_w", "sm_mhz", "memory_mhz", "limit_w"}
