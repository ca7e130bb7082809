import hashlib
import os
import stat

import pytest

from joulewise.core.caller import Caller
from joulewise.core.errors import BadSpec, NotKept
from joulewise.serve import tokens
from joulewise.serve.peer import Peer
from joulewise.serve.tokens import Guard, Scope, Token

HERE = {"peer": "127.0.0.1", "host": "localhost:8745"}
ELSEWHERE = {"peer": "10.0.0.7", "host": "server:8745"}


def bearing(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}", **ELSEWHERE}


def test_a_token_is_kept_as_its_hash_for_its_owner_alone(tmp_path):
    file = tmp_path / "new" / "tokens"
    secret, made = tokens.make(Scope.WRITE, " ci \n of team 7")
    tokens.keep(file, made)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert secret not in file.read_text()
    assert tokens.read(file) == (Token(hashlib.sha256(secret.encode()).hexdigest(), Scope.WRITE, "ci of team 7"),)


def test_tokens_are_added_and_people_may_write_between_them(tmp_path):
    file = tmp_path / "tokens"
    kept = [tokens.make(scope)[1] for scope in (Scope.READ, Scope.WRITE)]
    tokens.keep(file, kept[0])
    with file.open("a") as text:
        text.write("\n# the nightly jobs\n")
    tokens.keep(file, kept[1])
    assert list(tokens.read(file)) == kept


def test_a_line_that_an_editor_left_open_spoils_neither_its_own_token_nor_the_next(tmp_path):
    path = tmp_path / "tokens"
    first, second = (tokens.make(Scope.AGENT, name)[1] for name in ("n1", "n2"))
    tokens.keep(path, first)
    path.write_text(path.read_text().rstrip("\n"))
    tokens.keep(path, second)
    assert tokens.read(path) == (first, second)


def test_no_two_tokens_are_alike():
    assert len({tokens.make(Scope.READ)[0] for _ in range(100)}) == 100


def test_a_file_that_holds_something_else_is_refused_without_showing_it(tmp_path):
    file = tmp_path / "tokens"
    file.write_text("jw_the-token-itself write\n")
    with pytest.raises(BadSpec, match="line 1") as refused:
        tokens.read(file)
    assert "the-token-itself" not in str(refused.value)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(BadSpec, match="no file of tokens"):
        tokens.read(file)


def test_a_file_that_is_not_there_or_cannot_be_made_is_said_with_the_way_out(tmp_path):
    with pytest.raises(NotKept, match="no such file or directory; name another file"):
        tokens.read(tmp_path / "none")
    (tmp_path / "file").write_text("")
    with pytest.raises(NotKept, match="name another file"):
        tokens.keep(tmp_path / "file" / "tokens", tokens.make(Scope.READ)[1])


@pytest.mark.parametrize(
    ("scope", "wanted", "status"),
    [
        (Scope.READ, Scope.READ, None),
        (Scope.WRITE, Scope.READ, None),
        (Scope.WRITE, Scope.WRITE, None),
        (Scope.READ, Scope.WRITE, 403),
        (Scope.AGENT, Scope.AGENT, None),
        (Scope.WRITE, Scope.AGENT, None),
        (Scope.AGENT, Scope.READ, 403),
        (Scope.AGENT, Scope.WRITE, 403),
        (Scope.READ, Scope.AGENT, 403),
    ],
)
def test_who_may_write_may_read_but_not_the_reverse(scope, wanted, status):
    secret, made = tokens.make(scope, "n1")
    guard = Guard([tokens.make(Scope.WRITE)[1], made, tokens.make(Scope.READ)[1]])
    refused = guard.refuses(wanted, **bearing(secret))
    assert (refused.status if refused else None) == status


@pytest.mark.parametrize(
    ("scope", "name", "spoken_for", "served"),
    [
        (Scope.AGENT, "n1", "n1", True),
        (Scope.AGENT, "n1", "n2", False),
        (Scope.AGENT, "n1", "n11", False),
        (Scope.AGENT, "n1", "N1", False),
        (Scope.AGENT, "n1", "*", False),
        (Scope.AGENT, "*", "n2", True),
        (Scope.WRITE, "n1", "n2", True),
        (Scope.READ, "n1", "n1", False),
    ],
)
def test_an_agent_s_token_speaks_for_the_node_that_it_is_named_after(scope, name, spoken_for, served):
    secret, made = tokens.make(scope, name)
    refused = Guard([made]).refuses(Scope.AGENT, **bearing(secret), node=spoken_for)
    assert (None if refused is None else refused.status) == (None if served else 403)


def test_an_agent_s_token_that_names_no_node_is_not_made_and_one_in_the_file_speaks_for_none(tmp_path):
    for name in ("", " ", "n1 n2"):
        with pytest.raises(BadSpec, match=r"speaks for the node that it is named after.*--name n1, or --name '\*'"):
            tokens.make(Scope.AGENT, name)
    file = tmp_path / "tokens"
    file.write_text(hashlib.sha256(b"jw_x").hexdigest() + " agent\n")
    guard = Guard(tokens.read(file))
    assert "names no node, and 'n1' reports with it" in guard.refuses(Scope.AGENT, **bearing("jw_x"), node="n1").message


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer ", "Bearer x", "Basic am93OnRva2Vu", "Bearer ü", "Bearer " + "x" * 10_000],
)
def test_without_a_token_that_is_known_nothing_is_served_even_here(authorization):
    guard = Guard([tokens.make(Scope.WRITE)[1]])
    refused = guard.refuses(Scope.READ, authorization=authorization, **HERE)
    assert refused is not None
    assert refused.status == 401


def test_a_hash_is_no_token():
    _, made = tokens.make(Scope.WRITE)
    assert Guard([made]).refuses(Scope.READ, **bearing(made.hash)).status == 401


def test_a_file_without_tokens_lets_nobody_in():
    assert Guard([]).refuses(Scope.READ, authorization="Bearer x", **HERE).status == 401


@pytest.mark.parametrize(
    ("peer", "host", "served"),
    [
        ("127.0.0.1", "127.0.0.1:8745", True),
        ("127.0.0.1", "localhost", True),
        ("::1", "[::1]:8745", True),
        ("::ffff:127.0.0.1", "LOCALHOST:1", True),
        ("10.0.0.7", "127.0.0.1:8745", False),
        ("127.0.0.1", "rebound.example:8745", False),
        ("127.0.0.1", None, False),
        (None, "localhost", False),
    ],
)
def test_where_local_users_are_trusted_only_this_machine_is_served_under_its_own_name(peer, host, served):
    refused = Guard(local_users=True).refuses(Scope.READ, authorization=None, peer=peer, host=host)
    assert (refused is None) is served
    assert served or refused.status == 401
    assert Guard(open_to_all=True).refuses(Scope.WRITE, authorization=None, peer=peer, host=host) is None


@pytest.mark.parametrize("scope", list(Scope))
def test_a_guard_that_is_told_nothing_lets_nobody_in(scope):
    assert Guard().refuses(scope, authorization=None, **HERE).status == 401


@pytest.mark.parametrize(
    ("origin", "served"),
    [
        (None, True),
        (f"http://{HERE['host']}", True),
        (f"http://{HERE['host'].upper()}", True),
        ("http://localhost:3000", False),
        ("http://127.0.0.1:1", False),
        ("http://[::1]:8745", False),
        ("https://evil.example", False),
        ("https://localhost.evil.example:8745", False),
        ("null", False),
        ("", False),
    ],
)
def test_a_page_of_another_address_gets_nothing_through_this_machine_s_browser(origin, served):
    secret, made = tokens.make(Scope.WRITE)
    for guard in (Guard(local_users=True), Guard(open_to_all=True), Guard([made])):
        refused = guard.refuses(Scope.WRITE, authorization=f"Bearer {secret}", origin=origin, **HERE)
        assert (refused is None) is served
        assert served or refused.status == 403


def peer(uid: int, *groups: int) -> Peer:
    return Peer(4242, uid, uid, frozenset({uid, *groups}))


@pytest.mark.parametrize(
    ("guard", "who", "may"),
    [
        # (read, write, write what may be one's own, report)
        (Guard(), peer(0), "rwoa"),
        (Guard(), peer(os.geteuid()), "rwoa"),
        (Guard(), peer(65534), ""),
        (Guard(open_to_all=True, local_users=True), peer(65534), ""),
        (Guard(users=True), peer(0), "rwoa"),
        (Guard(users=True), peer(65534), "ro"),
        (Guard(users=True, operators_gid=77), peer(65534), "ro"),
        (Guard(users=True, operators_gid=77), peer(65534, 77), "rwoa"),
    ],
)
def test_through_a_unix_socket_rights_are_by_the_kernel_s_word(guard, who, may):
    acts = {
        "r": (Scope.READ, False),
        "w": (Scope.WRITE, False),
        "o": (Scope.WRITE, True),
        "a": (Scope.AGENT, False),
    }
    for act, (scope, owners) in acts.items():
        # Whatever else is sent changes nothing.
        answer = guard.admits(
            scope, authorization="Bearer x", peer="127.0.0.1", host="localhost", local=who, owners=owners
        )
        if act in may:
            assert answer == Caller(uid=who.uid, operator="w" in may)
        else:
            assert answer.status == 403
            assert f"you are uid {who.uid}" in answer.message


def test_a_token_s_bearer_is_known_by_its_name():
    secret, made = tokens.make(Scope.WRITE, "ci")
    assert Guard([made]).admits(Scope.READ, **bearing(secret)) == Caller(token="ci", operator=True)
    secret, made = tokens.make(Scope.READ, "wall")
    assert Guard([made]).admits(Scope.READ, **bearing(secret)) == Caller(token="wall")
