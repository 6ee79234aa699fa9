"""What MPICH's launcher says: a table of lines and answers."""

from __future__ import annotations

import pytest

from elasticjob.pmi import door, protocol
from elasticjob.pmi.protocol import Drop, Send, World

INIT = b"cmd=init pmi_version=1 pmi_subversion=1\n"

ANSWERS = {
    INIT: b"cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n",
    b"cmd=get_maxes\n": b"cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024 rc=0\n",
    b"cmd=get_appnum\n": b"cmd=appnum appnum=0 rc=0\n",
    b"cmd=get_universe_size\n": b"cmd=universe_size size=3 rc=0\n",
    b"cmd=get_my_kvsname\n": b"cmd=my_kvsname kvsname=one rc=0\n",
    b"cmd=get kvsname=one key=PMI_process_mapping\n": (
        b"cmd=get_result rc=0 msg=success value=(vector,(0,1,2),(1,1,1))\n"
    ),
    b"cmd=get kvsname=one key=PMI_hwloc_xmlfile\n": b"cmd=get_result rc=-1 msg=not_found\n",
    b"cmd=put kvsname=one key=a value=0[3]F\n": b"cmd=put_result rc=0 msg=success\n",
    b"cmd=put kvsname=one key=PMI_process_mapping value=x\n": b"cmd=put_result rc=-1 msg=duplicate_key\n",
    b"cmd=finalize\n": protocol.GOODBYE,
    b"cmd=publish_name service=a port=b\n": b"cmd=publish_result rc=-1 msg=not_supported\n",
    b"mcmd=spawn\nnprocs=1\nexecname=a\nendcmd\n": b"cmd=spawn_result rc=-1 msg=not_supported\n",
    b"cmd=abort exitcode=3\n": b"",
}


def make_world() -> World:
    return World("one", [0, 0, 1])


def say(world: World, rank: int, data: bytes) -> bytes:
    actions = world.receive(rank, data)
    assert all(isinstance(one, Send) and one.rank == rank for one in actions)
    return b"".join(one.data for one in actions if isinstance(one, Send))


@pytest.mark.parametrize("line", ANSWERS)
def test_a_line_has_one_answer(line: bytes) -> None:
    assert say(make_world(), 1, line) == ANSWERS[line]


@pytest.mark.parametrize("line", ANSWERS)
def test_a_line_may_come_in_parts(line: bytes) -> None:
    world = make_world()
    assert b"".join(say(world, 1, line[at : at + 1]) for at in range(len(line))) == ANSWERS[line]


def test_several_lines_may_come_at_once() -> None:
    assert say(make_world(), 0, b"".join(ANSWERS)) == b"".join(ANSWERS.values())


def test_what_a_rank_puts_the_others_get() -> None:
    world = make_world()
    say(world, 2, b"cmd=put kvsname=one key=card value=abc\n")
    assert say(world, 0, b"cmd=get kvsname=one key=card\n").endswith(b"value=abc\n")


def test_a_barrier_opens_when_all_are_there_and_once() -> None:
    world = make_world()
    assert not world.receive(0, b"cmd=barrier_in\n")
    assert not world.receive(0, b"cmd=barrier_in\n"), "twice is not two ranks"
    assert not world.receive(2, b"cmd=barrier_in\n")
    assert world.receive(1, b"cmd=barrier_in\n") == [Send(rank, b"cmd=barrier_out rc=0\n") for rank in range(3)]
    assert not world.receive(1, b"cmd=barrier_in\n"), "the next one begins"


def test_a_barrier_does_not_open_without_a_rank_that_was_lost() -> None:
    world = make_world()
    world.receive(0, b"cmd=barrier_in\n")
    world.lose(0)
    assert not world.receive(1, b"cmd=barrier_in\n")
    assert not world.receive(2, b"cmd=barrier_in\n")


def test_a_world_is_over_when_all_have_gone() -> None:
    world = make_world()
    world.lose(0)
    world.receive(1, b"cmd=finalize\n")
    assert not world.is_over
    world.lose(1)
    world.lose(2)
    assert world.is_over


WRONG = {
    "no end": b"a" * (protocol.LINE + 1),
    "a long line": b"cmd=put key=a value=" + b"b" * protocol.LINE + b"\n",
    "no text": b"cmd=get key=\xff\n",
    "an unknown command": b"cmd=exec rm=1\n",
    "no command": b"\n",
    "a long key": b"cmd=put key=" + b"k" * (protocol.KEY + 1) + b" value=a\n",
    "no key": b"cmd=put value=a\n",
    "a long value": b"cmd=put key=k value=" + b"v" * (protocol.VALUE + 1) + b"\n",
}


@pytest.mark.parametrize("what", WRONG)
def test_what_nobody_says_ends_the_connection(what: str) -> None:
    world = make_world()
    actions = world.receive(1, WRONG[what] + INIT)
    assert len(actions) == 1
    assert isinstance(actions[0], Drop)
    assert actions[0].rank == 1
    assert say(world, 0, INIT) == ANSWERS[INIT], "of this rank alone"


def test_a_rank_has_a_number_of_keys() -> None:
    world = make_world()
    for number in range(protocol.KEYS):
        say(world, 0, b"cmd=put key=k%d value=a\n" % number)
    assert isinstance(world.receive(0, b"cmd=put key=k value=a\n")[0], Drop)
    assert say(world, 1, b"cmd=put key=k value=a\n") == b"cmd=put_result rc=0 msg=success\n"


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (b"cmd=abort exitcode=3\n", 3),
        (b"cmd=abort exitcode=3", None),
        (b"cmd=abort exitcode=0\n", 1),
        (b"cmd=abort exitcode=256\n", 1),
        (b"cmd=abort exitcode=-1\n", 255),
        (b"cmd=barrier_in\ncmd=abort exitcode=7\n", 7),
        (b"cmd=finalize\n", None),
        (b"", None),
    ],
)
def test_a_rank_that_aborts_has_a_code(said: bytes, code: int | None) -> None:
    assert protocol.find_abort(said) == code


@pytest.mark.parametrize(
    ("nodes", "text"),
    [
        ([0], "(vector,(0,1,1))"),
        ([0, 0, 0], "(vector,(0,1,3))"),
        ([0, 1, 2], "(vector,(0,3,1))"),
        ([0, 0, 1, 1], "(vector,(0,2,2))"),
        ([0, 0, 1, 1, 2], "(vector,(0,2,2),(2,1,1))"),
        ([0, 1, 1, 2, 2, 3], "(vector,(0,1,1),(1,2,2),(3,1,1))"),
        ([one for node in range(400) for one in [node] * (1 + node % 2)], "(vector,(0,600,1))"),
    ],
)
def test_nodes_are_told_in_blocks(nodes: list[int], text: str) -> None:
    assert protocol.describe_nodes(nodes) == text


def test_the_names_in_shared_memory_are_those_that_were_seen() -> None:
    """MPICH 5.0.2 had this name for a world of one node."""
    assert protocol.find_shared_names("elasticjob_abcd", 0) == ("mpich_shm_7dbd4730_0", "mpich_vci_7dbd4730_0")


class TestDoor:
    PLACE = door.Place(2, 1)
    DRAWN, MINE = "1" * 32, "2" * 32

    def test_a_rank_is_let_in_and_knows_by_whom(self) -> None:
        line = door.answer("secret", self.DRAWN, self.MINE, self.PLACE).rstrip(b"\n")
        found = door.judge("secret", self.DRAWN, line, 3)
        assert found is not None
        assert found[0] == self.PLACE
        reply = found[1].rstrip(b"\n")
        assert door.is_server("secret", self.DRAWN, self.MINE, self.PLACE, reply)
        assert not door.is_server("other", self.DRAWN, self.MINE, self.PLACE, reply)

    def test_a_rank_cannot_be_shown_its_own_proof(self) -> None:
        proof = door.prove("secret", "rank", self.DRAWN, self.MINE, self.PLACE).encode()
        assert not door.is_server("secret", self.DRAWN, self.MINE, self.PLACE, proof)

    def test_others_are_not_let_in(self) -> None:
        line = door.answer("secret", self.DRAWN, self.MINE, self.PLACE).rstrip(b"\n")
        assert door.judge("other", self.DRAWN, line, 3) is None, "another secret"
        assert door.judge("secret", "3" * 32, line, 3) is None, "an answer that somebody has heard"
        assert door.judge("secret", self.DRAWN, line, 2) is None, "no rank of this world"
        assert door.judge("secret", self.DRAWN, line.replace(b"2 1", b"1 1", 1), 3) is None, "another rank's"
        for text in (b"", b"cmd=init", line + b" ", line[:-1], b"\xff" * 100):
            assert door.judge("secret", self.DRAWN, text, 3) is None
