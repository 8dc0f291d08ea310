"""Composed stores against a dictionary, while members fail at random."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from anbar.core.clock import ManualClock
from anbar.testing.memory_store import MemoryStore
from anbar.tier.store import Outcome, PutItem
from tests.unit.store.composed import layered, replicated, settle

KEYS = [bytes([number]) * 8 for number in range(3)]
SCOPES = ["", "tenant"]
TIMEOUT_S = 60.0
FAULTS = [Outcome.ERROR, Outcome.TIMEOUT, ZeroDivisionError()]

a_member = st.integers(0, 2)
a_scope = st.sampled_from(SCOPES)
some_keys = st.lists(st.sampled_from(KEYS), min_size=1, unique=True)
Entry = tuple[str, bytes]


def value_of(scope: str, key: bytes) -> bytes:
    """A key names its content."""
    return key * 4 + scope.encode()


class Machine(RuleBasedStateMachine):
    """`may_hold`: what was put, and not surely removed. `suffered`: of entries that were put while all was
    well, the members that had trouble of any kind since then."""

    kind = "replicated"

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.members = [MemoryStore(name) for name in "abc"]
        self.troubled: set[int] = set()
        """Members that are faulty, or may still be passed over for it."""
        self.may_hold: set[Entry] = set()
        self.suffered: dict[Entry, set[int]] = {}

    @initialize(write_back=st.booleans())
    def open(self, write_back: bool) -> None:
        if self.kind == "replicated":
            self.store = replicated(self.members, clock=self.clock)
        else:
            self.store = layered(self.members, self.clock, write_back=write_back)

    @rule(keys=some_keys, scope=a_scope)
    def put(self, keys: list[bytes], scope: str) -> None:
        items = [PutItem(key, memoryview(value_of(scope, key))) for key in keys]
        outcomes = self.store.put(items, scope=scope, timeout_s=TIMEOUT_S)
        for key, outcome in zip(keys, outcomes, strict=True):
            self.may_hold.add((scope, key))
            if not self.troubled and self.kind == "replicated":
                assert outcome is Outcome.HIT
                self.suffered[scope, key] = set()

    @rule(keys=some_keys, scope=a_scope)
    def get(self, keys: list[bytes], scope: str) -> None:
        buffers = [bytearray(len(value_of(scope, key))) for key in keys]
        views = [memoryview(buffer) for buffer in buffers]
        outcomes = self.store.get_into(keys, views, scope=scope, timeout_s=TIMEOUT_S)
        for key, buffer, outcome in zip(keys, buffers, outcomes, strict=True):
            self._check((scope, key), outcome)
            assert outcome is not Outcome.HIT or bytes(buffer) == value_of(scope, key)

    @rule(keys=some_keys, scope=a_scope)
    def exists(self, keys: list[bytes], scope: str) -> None:
        outcomes = self.store.exists(keys, scope=scope, timeout_s=TIMEOUT_S)
        for key, outcome in zip(keys, outcomes, strict=True):
            # A damaged copy is only found when it is read.
            self._check((scope, key), outcome)

    @rule(keys=some_keys, scope=a_scope)
    def delete(self, keys: list[bytes], scope: str) -> None:
        outcomes = self.store.delete(keys, scope=scope, timeout_s=TIMEOUT_S)
        for key, outcome in zip(keys, outcomes, strict=True):
            self._removed({(scope, key)}, outcome)

    @rule(scope=a_scope)
    def delete_scope(self, scope: str) -> None:
        outcome = self.store.delete_scope(scope, timeout_s=TIMEOUT_S)
        self._removed({entry for entry in self.may_hold if entry[0] == scope}, outcome)

    @rule(member=a_member, fault=st.sampled_from(FAULTS))
    def fail(self, member: int, fault: Outcome | Exception) -> None:
        self._heal(member)
        if isinstance(fault, Exception):
            self.members[member].raises = fault
        else:
            self.members[member].outcome = fault
        self._trouble(member)

    @rule(member=a_member, key=st.sampled_from(KEYS), scope=a_scope)
    def damage(self, member: int, key: bytes, scope: str) -> None:
        self.members[member].damage(key, scope)
        self.suffered.get((scope, key), set()).add(member)

    @rule(member=a_member, key=st.sampled_from(KEYS), scope=a_scope)
    def evict(self, member: int, key: bytes, scope: str) -> None:
        self.members[member].evict(key, scope)
        self.suffered.get((scope, key), set()).add(member)

    @rule()
    def recover(self) -> None:
        """All members work, and after the longest pause one call finds that out for each."""
        for member in range(3):
            self._heal(member)
        settle(self.store)
        self.clock.advance(60.0)
        every = [b"probe" + bytes([number]) for number in range(64)]
        for _ in range(3):
            self.store.exists(every, scope="probes", timeout_s=TIMEOUT_S)
        if all(part.breaker == 0 for part in self.store.stats().parts):
            self.troubled.clear()

    @rule()
    def write_copies(self) -> None:
        settle(self.store)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()

    def _check(self, entry: Entry, outcome: Outcome) -> None:
        if outcome is Outcome.HIT:
            assert entry in self.may_hold
        if len(self.suffered.get(entry, set(range(3)))) <= 1:
            assert outcome is Outcome.HIT

    def _removed(self, entries: set[Entry], outcome: Outcome) -> None:
        for entry in entries:
            self.suffered.pop(entry, None)
        if outcome in (Outcome.HIT, Outcome.MISS):
            self.may_hold -= entries

    def _heal(self, member: int) -> None:
        self.members[member].outcome = self.members[member].raises = None

    def _trouble(self, member: int) -> None:
        self.troubled.add(member)
        for members in self.suffered.values():
            members.add(member)


class LayeredMachine(Machine):
    kind = "layered"


@pytest.mark.parametrize("machine", [Machine, LayeredMachine])
def test_never_a_wrong_value_never_an_exception(machine: type[Machine]) -> None:
    """Puts, reads, lookups and removals of three keys in two scopes, while members refuse, are late, raise,
    lose and damage entries: HIT only for what was put and not removed, with its value; and of what was
    put with all members well, everything is found as long as one member had trouble since."""
    machine.TestCase.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
    case = machine.TestCase()
    case.runTest()
