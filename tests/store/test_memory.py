import pytest

from joulewise.store import Memory


@pytest.fixture
def memory(tmp_path):
    return Memory(tmp_path / "joulewise.db")


def test_nothing_is_remembered_at_first(memory):
    assert memory.recall("f", "GPU-1", "NVIDIA H200") is None
    assert memory.trouble is None


def test_what_was_learnt_on_this_card_comes_before_what_another_taught(memory):
    assert memory.keep("f", "GPU-1", "NVIDIA H200", {"sm_mhz": 1500})
    assert memory.keep("f", "GPU-2", "NVIDIA H200", {"sm_mhz": 1600})
    here = memory.recall("f", "GPU-1", "NVIDIA H200")
    assert (here.payload, here.same_card) == ({"sm_mhz": 1500}, True)
    elsewhere = memory.recall("f", "GPU-3", "NVIDIA H200")
    assert (elsewhere.payload, elsewhere.same_card) == ({"sm_mhz": 1600}, False)


def test_another_workload_or_another_model_teaches_nothing(memory):
    memory.keep("f", "GPU-1", "NVIDIA H200", {})
    assert memory.recall("g", "GPU-1", "NVIDIA H200") is None
    assert memory.recall("f", "GPU-9", "NVIDIA A100") is None


def test_keeping_again_replaces_and_counts(memory):
    memory.keep("f", "GPU-1", "NVIDIA H200", {"a": 1})
    memory.keep("f", "GPU-1", "NVIDIA H200", {"b": [1.5, None]})
    found = memory.recall("f", "GPU-1", "NVIDIA H200")
    assert (found.payload, found.runs) == ({"b": [1.5, None]}, 2)


def test_a_card_knows_all_its_workloads_latest_first(memory):
    for mark in "fgh":
        memory.keep(mark, "GPU-1", "NVIDIA H200", {})
    memory.keep("f", "GPU-2", "NVIDIA H200", {})
    assert [each.fingerprint for each in memory.card("GPU-1")] == ["h", "g", "f"]


def test_what_is_forgotten_is_gone(memory):
    memory.keep("f", "GPU-1", "NVIDIA H200", {})
    memory.keep("g", "GPU-1", "NVIDIA H200", {})
    assert memory.forget("f") == 1
    assert [each.fingerprint for each in memory.all()] == ["g"]
    assert memory.forget() == 1
    assert memory.all() == []


def test_a_memory_that_cannot_be_used_says_so_and_raises_nothing(tmp_path):
    (tmp_path / "joulewise.db").write_bytes(b"damaged" * 100)
    memory = Memory(tmp_path / "joulewise.db")
    assert memory.recall("f", "GPU-1", "NVIDIA H200") is None
    assert "move it away" in memory.trouble
    assert not memory.keep("f", "GPU-1", "NVIDIA H200", {})
    assert "move it away" in memory.trouble


@pytest.mark.parametrize("worth", [float("nan"), float("inf"), object()])
def test_what_is_no_plain_json_is_not_kept_and_said(memory, worth):
    memory.keep("f", "GPU-1", "NVIDIA H200", {"a": 1})
    assert not memory.keep("f", "GPU-1", "NVIDIA H200", {"a": worth})
    assert "cannot be kept" in memory.trouble
    assert memory.recall("f", "GPU-1", "NVIDIA H200").payload == {"a": 1}


@pytest.mark.parametrize("damaged", ["[]", "{", "null", "3"])
def test_one_damaged_line_is_no_memory_and_hides_no_other(memory, damaged):
    for mark in "fg":
        memory.keep(mark, "GPU-1", "NVIDIA H200", {"a": 1})
    with memory.database.writing() as connection:
        connection.execute("UPDATE learnt SET payload = ? WHERE fingerprint = 'f'", (damaged,))
    assert memory.recall("f", "GPU-1", "NVIDIA H200") is None
    assert "workload f is damaged" in memory.trouble
    assert [each.fingerprint for each in memory.card("GPU-1")] == ["g"]
