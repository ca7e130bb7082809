import json

import pytest

from joulewise.cluster.declared import Declared, Share
from joulewise.core.errors import NotKept
from joulewise.core.knob import Setting
from joulewise.daemon.agent_accounts import Accounts
from joulewise.daemon.agent_memory import Heard, Memory


def test_what_was_kept_is_there_again(tmp_path):
    memory = Memory(tmp_path)
    accounts = Accounts("b")
    accounts.count(0.0, {"GPU-0": 5.0}, {"GPU-0": "7"})
    accounts.count(1.0, {"GPU-0": 105.0}, {"GPU-0": "7"}, host_j=3.0)
    heard = Heard(
        4, Declared("n1", 4, 9, (Share("a", "7", Setting(sm_mhz=900), 2, firm=False),), 900.0), {"7": Setting()}
    )
    memory.keep_accounts(accounts)
    memory.keep_heard(heard)
    again = Memory(tmp_path)
    assert again.accounts("b").kept() == accounts.kept()
    assert again.heard() == heard
    assert again.problems == []


def test_an_agent_that_is_new_has_heard_and_counted_nothing(tmp_path):
    memory = Memory(tmp_path / "new")
    assert memory.heard() == Heard()
    assert memory.accounts("b").node_j == 0.0
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


def test_a_write_that_was_cut_short_leaves_what_was_there_before(tmp_path):
    memory = Memory(tmp_path)
    memory.keep_heard(Heard(4))
    (tmp_path / ".declared.json.new").write_text('{"epoch": 5, "fi')
    assert Memory(tmp_path).heard().epoch == 4
    memory.keep_heard(Heard(6))
    assert Memory(tmp_path).heard().epoch == 6


@pytest.mark.parametrize(
    "text", ["", "{", "null", "[]", '{"epoch": 1}', json.dumps({"epoch": 1, "firm": {"7": {"x": 1}}})]
)
def test_a_damaged_declaration_is_put_aside_and_said(tmp_path, text):
    (tmp_path / "declared.json").write_text(text)
    memory = Memory(tmp_path)
    assert memory.heard() == Heard()
    assert (tmp_path / "declared.json.damaged").exists() == bool(memory.problems)
    assert memory.problems or text == "null"


def test_a_folder_that_cannot_be_made_is_one_line_with_the_way_out(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotKept, match="see --state"):
        Memory(tmp_path / "file" / "agent")


def test_a_folder_that_has_gone_is_not_kept(tmp_path):
    memory = Memory(tmp_path / "a")
    (tmp_path / "a").rmdir()
    with pytest.raises(NotKept, match="no such file"):
        memory.keep_heard(Heard(1))
