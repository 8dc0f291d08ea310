"""What servers tell of themselves and of each other, and what entries are called."""

import logging
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anbar.adapters.store.deadline import DeadlineRunner
from anbar.adapters.store.valkey.names import NUM_SLOTS, Names, slot
from anbar.adapters.store.valkey.nodes import Nodes, read_slots
from anbar.adapters.store.valkey.replies import ServerError
from anbar.adapters.store.valkey.settings import errors, read_info, silence, warnings
from anbar.adapters.store.valkey.wire import Node, Wire, make_node, parse_node
from anbar.core.clock import ManualClock

ASKED = Node("10.0.0.1:7000")


def unfit(*, is_cluster: bool = False, has_ttl: bool = True, **info: str) -> list[str]:
    return list(errors(info, is_cluster=is_cluster, has_ttl=has_ttl))


def test_information() -> None:
    """Sections, values with colons in them, and a server that may not be asked."""
    reply = (
        b"# Server\r\nredis_version:7.2.4\r\nvalkey_version:9.1.2\r\n\r\ndb0:keys=1,expires=0\r\nx:a:b\r\n"
    )
    found = {"redis_version": "7.2.4", "valkey_version": "9.1.2", "db0": "keys=1,expires=0", "x": "a:b"}
    assert read_info(reply) == found
    assert read_info(None) == {}


@pytest.mark.parametrize(
    ("version", "is_fit"),
    [("6.0.16", False), ("6.1", False), ("6.2.0", True), ("7.0.15", True), ("10.0", True)],
)
def test_versions(version: str, is_fit: bool) -> None:
    """From the one on that has GETEX."""
    assert (unfit(redis_version=version) == []) is is_fit


def test_what_a_server_does_not_tell_is_fine() -> None:
    """Managed services hide much."""
    assert unfit() == []
    assert list(warnings({})) == []


def test_memory_policies() -> None:
    """Unfit is what would never let go of anything; a warning is what will refuse for a while."""
    assert len(unfit(maxmemory_policy="noeviction", has_ttl=False)) == 1
    assert len(unfit(maxmemory_policy="volatile-ttl", has_ttl=False)) == 1
    assert unfit(maxmemory_policy="allkeys-lru", has_ttl=False) == []
    assert unfit(maxmemory_policy="noeviction") == unfit(maxmemory_policy="volatile-lru") == []
    assert len(list(warnings({"maxmemory": "0", "maxmemory_policy": "noeviction"}))) == 1
    assert len(list(warnings({"maxmemory": "9", "maxmemory_policy": "noeviction"}))) == 1
    assert list(warnings({"maxmemory": "9", "maxmemory_policy": "allkeys-lru", "role": "master"})) == []
    assert len(list(warnings({"maxmemory": "9", "role": "slave"}))) == 1


@pytest.mark.parametrize(
    ("flags", "missing"),
    [(b"", "Exeg"), (b"Ex", "eg"), (b"gxeE", None), (b"AE", None), (b"AK", "E"), (b"KExeg$", None)],
)
def test_a_server_that_does_not_tell_what_it_evicts(flags: bytes, missing: str | None) -> None:
    """Said with what to set; `A` stands for all kinds. A server that does not let us ask is left alone."""
    said = silence([b"notify-keyspace-events", flags])
    if missing is None:
        assert said is None
    else:
        assert said is not None
        assert f"lack {missing}:" in said
        assert said.endswith("set notify-keyspace-events Exeg")
    assert silence(ServerError("NOPERM no")) is None


def test_slots() -> None:
    """Addresses, names, IPv6, and a node that does not know its own address."""
    reply = [
        [0, 99, [b"10.0.0.2", 7001, b"id", []], [b"10.0.0.9", 7009, b"replica"]],
        [100, 199, [b"cache-1.example", 7002]],
        [200, 299, [b"fd00::5", 7003]],
        [300, 399, [b"", 7004]],
        [400, 499, [None, 7005]],
        [16383, 16383, [b"?", 7006]],
    ]
    slots = read_slots(reply, ASKED)
    assert slots is not None
    assert len(slots) == NUM_SLOTS
    firsts = [slots[number] for number in (0, 99, 100, 200, 300, 400, 500, 16383)]
    assert firsts == [
        *("10.0.0.2:7001", "10.0.0.2:7001", "cache-1.example:7002", "[fd00::5]:7003"),
        *("10.0.0.1:7004", "10.0.0.1:7005", None, "10.0.0.1:7006"),
    ]


@pytest.mark.parametrize("reply", [None, [], b"OK", [[0, 1]], [[0, b"x", [b"h", 1]]], [[0, 5, [b"h"]]]])
def test_slots_that_are_none(reply: object) -> None:
    """A node that knows nothing yet, and replies of another form."""
    assert read_slots(reply, ASKED) is None  # type: ignore[arg-type]


def never(node: Node) -> Wire:
    raise ConnectionRefusedError(f"{node} is not there")


def nodes(clock: ManualClock | None = None, *, is_cluster: bool = True) -> Nodes:
    runner = DeadlineRunner(1, "test")
    runner.start()
    clock = clock or ManualClock()
    return Nodes([ASKED], is_cluster=is_cluster, dial=never, runner=runner, clock=clock)


@pytest.mark.parametrize(
    ("text", "node"),
    [
        ("MOVED 3999 10.0.0.5:6381", "10.0.0.5:6381"),
        ("ASK 3999 fd00::5:6381", "[fd00::5]:6381"),
        ("MOVED 3999 [fd00::5]:6381", "[fd00::5]:6381"),
        ("MOVED 3999 :6381", "10.0.0.1:6381"),
        ("MOVED 3999", None),
        ("MOVED", None),
    ],
)
def test_redirections(text: str, node: str | None) -> None:
    """Addresses of any form; what tells nothing leads nowhere."""
    assert nodes().redirected(b"name", text, ASKED) == node


def test_only_a_move_is_remembered() -> None:
    """ASK is for one command."""
    some = nodes()
    some.redirected(b"name", "ASK 1 10.0.0.5:1", ASKED)
    assert some.of(b"name") is None
    assert not some.suspected.is_set()
    some.redirected(b"name", "MOVED 1 10.0.0.5:1", ASKED)
    assert some.of(b"name") == "10.0.0.5:1"
    assert some.suspected.is_set()


def test_a_node_that_refuses_is_told_of_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """The same complaint again and again; another one at once."""
    clock = ManualClock()
    some = nodes(clock)
    with caplog.at_level(logging.WARNING):
        for text, seconds, num_told in (("a", 0, 1), ("a", 59, 1), ("a", 1, 2), ("b", 0, 3)):
            clock.advance(seconds)
            some.failed(ASKED, text)
            assert len(caplog.records) == num_told


def test_a_node_that_cannot_be_reached() -> None:
    """Taking a connection ends in why; asking for a cluster's order finds nobody."""
    some = nodes()
    with pytest.raises(ConnectionRefusedError, match="is not there"):
        some.take(ASKED, time.monotonic() + 60.0)
    assert not some.refresh(time.monotonic() + 60.0)
    assert some.primaries() == []


@given(st.sampled_from(["10.0.0.1", "fd00::1", "a.example"]), st.integers(1, 65535))
def test_nodes_have_hosts_and_ports(host: str, port: int) -> None:
    """There and back."""
    assert parse_node(make_node(host, port)) == (host, port)


@given(st.binary(min_size=1, max_size=200), st.text(max_size=20))
def test_names_tell_the_key_to_its_own_namespace(key: bytes, scope: str) -> None:
    """A key of up to 96 bytes comes back from its name; to another namespace the name says nothing."""
    name = Names(b"one").name(key, scope)
    assert Names(b"one").key_of(name) == (key if len(key) <= 96 else None)
    assert Names(b"two").key_of(name) is None
    assert b"{" not in name
    assert 0 <= slot(name) < NUM_SLOTS


def test_a_slot_is_the_clusters() -> None:
    """The example of the cluster's specification: 12739 for 123456789."""
    assert slot(b"123456789") == 0x31C3 % NUM_SLOTS == 12739
