"""Drives the shared tier's shell over vLLM's real classes, without an engine; runs in the engine's
interpreter.

    python drive_tier.py <output file>

Writes, as JSON, what each scenario saw; `test_vllm_contract` says what must be there.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import numpy as np
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
from vllm.v1.kv_offload.base import (
    OffloadingKVEventsConfig,
    OffloadKey,
    ReqContext,
    ScheduleEndContext,
    make_offload_key,
)
from vllm.v1.kv_offload.config import OffloadingGroupConfig
from vllm.v1.kv_offload.tiering.base import JobResult, TransferJob

from anbar.adapters.keys.files import KeyFiles
from anbar.adapters.store.composed import ComposedConfig, ComposedStore
from anbar.adapters.store.encrypted import EncryptedStore
from anbar.adapters.store.files import FilesConfig, FilesStore
from anbar.adapters.store.part import Part
from anbar.adapters.store.sweep import Bounds
from anbar.adapters.vllm.shared_tier import SharedTier, SharedTierOptions
from anbar.adapters.vllm.step_work import step_work
from anbar.adapters.vllm.store_calls import Timeouts
from anbar.config.stores import StoreConfig, store_settings
from anbar.core.clock import ManualClock
from anbar.core.cost import PrefillWork
from anbar.core.errors import AnbarError
from anbar.testing.memory_store import MemoryStore
from anbar.tier.placement import Rendezvous
from anbar.tier.scopes import ScopeRules, Scopes
from anbar.tier.store import Outcome, Store

ROWS, ROW_BYTES, CHUNK_TOKENS = 16, 64, 32
STEP = ScheduleEndContext((), ())


class Rig:
    """A tier over a store in memory, or another one, stepped as vLLM's manager does."""

    def __init__(self, other: Store | None = None, scopes: Scopes | None = None) -> None:
        self.store = MemoryStore("mem")
        self.clock = ManualClock()
        self.rows = np.zeros((ROWS, ROW_BYTES), dtype=np.int8)
        groups = (OffloadingGroupConfig(CHUNK_TOKENS, ("layers.0",), 0),)
        spec = SimpleNamespace(
            kv_events_config=OffloadingKVEventsConfig(True, False),
            config=SimpleNamespace(groups=groups),
            blocks_per_chunk=1,
        )
        self.tier = SharedTier(
            spec,
            memoryview(self.rows),
            "AnbarSharedTier",
            None,
            store=other or self.store,
            clock=self.clock,
            options=SharedTierOptions(
                Timeouts(60.0, 60.0, 60.0) if scopes else Timeouts(0.5, 0.5, 0.5), scopes=scopes
            ),
        )
        self.num_jobs = 0

    def request(self, name: str, params: object = None) -> ReqContext:
        context = ReqContext(name, params)
        self.tier.on_new_request(context)
        return context

    def lookup(self, key: OffloadKey, context: ReqContext) -> list[str]:
        """Answers step by step until one is final."""
        answers = []
        deadline_s = time.monotonic() + 60
        while time.monotonic() < deadline_s:
            answers.append(self.tier.lookup(key, context).name)
            if answers[-1] != "RETRY":
                return sorted(set(answers), key=answers.index)
            self.tier.on_schedule_end(STEP)
            time.sleep(0.005)
            self.tier.get_finished_jobs()
        return answers

    def run(self, keys: list[OffloadKey], rows: list[int], context: ReqContext, *, load: bool) -> JobResult:
        """One job, to its end."""
        self.num_jobs += 1
        job = TransferJob(self.num_jobs, keys, np.array(rows, dtype=np.int32), load, context)
        (self.tier.submit_load if load else self.tier.submit_store)(job)
        self.tier.drain_jobs()
        (result,) = self.tier.get_finished_jobs()
        assert result.job_id == job.job_id
        return result

    def events(self) -> list[list[object]]:
        return [
            [e.medium.name, e.locality.name, e.ownership, e.removed, len(e.keys)]
            for e in self.tier.take_events()
        ]

    def stats(self) -> dict[str, float]:
        """Values of the metrics, by name and labels after the store's."""
        data = self.tier.get_stats().data["data"]
        return {
            ":".join((name, *labels[1:])): value
            for name, samples in data.items()
            for labels, value in samples.items()
            if not name.endswith("seconds")
        }


def key(number: int) -> OffloadKey:
    return make_offload_key(bytes([number]) * 32, 0)


def round_trip(rig: Rig) -> object:
    """Store two rows, find them, load them into other rows."""
    rig.rows[1], rig.rows[2] = 11, 22
    context = rig.request("r")
    before = rig.lookup(key(1), context)
    stored = rig.run([key(1), key(2)], [1, 2], context, load=False)
    other = rig.request("s")
    after = rig.lookup(key(1), other) + rig.lookup(key(2), other)
    loaded = rig.run([key(2), key(1)], [7, 8], other, load=True)
    rows = [int(rig.rows[7, 0]), int(rig.rows[8, -1])]
    return [before, stored.success, after, loaded.success, rows, rig.events(), rig.stats()]


def failed_load(rig: Rig) -> object:
    """One of three keys is damaged and one vanishes after the lookup: partial success, both are given up."""
    context = rig.request("r")
    rig.run([key(1), key(2), key(3)], [1, 2, 3], context, load=False)
    other = rig.request("s")
    found = [rig.lookup(key(n), other) for n in (1, 2, 3)]
    rig.events()
    rig.store.damage(key(2))
    rig.store.evict(key(3))
    result = rig.run([key(1), key(2), key(3)], [4, 5, 6], other, load=True)
    good = [k[0] for k in result.successful_keys or ()]
    again = [rig.lookup(key(n), other) for n in (1, 2, 3)]
    return [found, result.success, good, again, sorted(map(str, rig.events()))]


def order(rig: Rig) -> object:
    """vLLM's keys come in any order: the beginning of the prefix is stored first when only part may be."""
    context = rig.request("r")
    for number in range(ROWS):
        context.set_offload_key_position(key(number), 32 * (number + 1))
    keys = [key(n) for n in (9, 3, 0, 7, 11, 1, 5, 2, 10, 4, 8, 6)]
    rig.run(keys, list(range(12)), context, load=False)
    probe = rig.request("s")
    return [n for n in range(12) if rig.lookup(key(n), probe)[-1] == "HIT"]


def worth(rig: Rig) -> object:
    """Chunks of one prompt in two jobs, the first in any order: each saves less than the one before it. Who
    loads them says so, too."""
    context = rig.request("r")
    for number in range(ROWS):
        context.set_offload_key_position(key(number), 32 * (number + 1))
    rig.run([key(n) for n in (3, 1, 0, 2)], [0, 1, 2, 3], context, load=False)
    rig.run([key(4), key(5)], [4, 5], context, load=False)
    saved = [rig.store.saves_s[key(number)] for number in range(6)]
    other = rig.request("s")
    for number in range(4):
        other.set_offload_key_position(key(number), 32 * (number + 1))
    rig.run([key(2), key(0), key(3), key(1)], [8, 9, 10, 11], other, load=True)
    told = rig.store.read_saves_s == {key(number): saved[number] for number in range(4)}
    return [saved[-1] > 0, saved == sorted(saved, reverse=True), saved[0] > saved[1] > saved[3], told]


def outage(rig: Rig) -> object:
    """A hung store: a lookup is a miss after one deadline, further ones at once; later it is used again."""
    rig.store.delay_s = 60.0
    first = rig.request("r")
    hung = rig.lookup(key(1), first)
    num_calls = rig.store.num_calls
    refused = rig.lookup(key(2), first)
    stored = rig.run([key(3)], [3], first, load=False)
    is_spared = rig.store.num_calls == num_calls
    state = rig.stats()["anbar_tier_breaker_state"]
    rig.store.delay_s = 0.0
    rig.clock.advance(1.0)
    second = rig.request("s")
    back = rig.lookup(key(1), second)
    closed = rig.stats()["anbar_tier_breaker_state"]
    return [hung[-1], refused, stored.success, is_spared, state, back[-1], closed]


def full(rig: Rig) -> object:
    """A store that is full, and one that raises: jobs end, nothing raises."""
    context = rig.request("r", {"anbar": {"v": 1, "store": "always"}})
    rig.store.outcome = Outcome.FULL
    one = rig.run([key(1)], [1], context, load=False).success
    rig.store.outcome, rig.store.raises = None, RuntimeError("defect")
    two = rig.run([key(2)], [2], context, load=False).success
    three = rig.run([key(2)], [2], context, load=True).success
    return [one, two, three, rig.stats()["anbar_tier_defects"], rig.events()]


def wishes(rig: Rig) -> object:
    """What a request asks: scopes are apart, "never" is acknowledged, nonsense bypasses."""
    seen = []
    rig.run([key(1)], [1], rig.request("a", {"anbar": {"v": 1, "scope": "one"}}), load=False)
    fields = [{"v": 1, "scope": "one"}, {"v": 1, "scope": "two"}, {"v": 9}, "nonsense", None]
    for number, field in enumerate(fields):
        seen.append(rig.lookup(key(1), rig.request(f"b{number}", {"anbar": field}))[-1])
    never = rig.run([key(2)], [2], rig.request("c", {"anbar": {"v": 1, "store": "never"}}), load=False)
    return [seen, never.success, rig.store.stats().num_entries]


def pressure(rig: Rig) -> object:
    """A full store: of what is offered next the beginning of the prompt is stored and the rest is not, until
    it is offered again, or nothing has pressed for a while."""
    context = rig.request("r")
    for number, end in ((1, CHUNK_TOKENS), (2, 4096), (3, 8192)):
        context.set_offload_key_position(key(number), end)
    rig.store.outcome = Outcome.FULL
    rig.run([key(9)], [1], context, load=False)
    rig.store.outcome = None
    numbers = []
    for keys in ([key(1), key(2)], [key(2)]):
        rig.run(keys, [1, 2][: len(keys)], context, load=False)
        numbers.append(rig.store.stats().num_entries)
    stats = rig.stats()
    rig.clock.advance(60.0)
    rig.run([key(3)], [3], context, load=False)
    return [*numbers, rig.store.stats().num_entries, stats, rig.stats()["anbar_tier_reuse_filter"]]


def break_even(rig: Rig) -> object:
    """Loads teach what they take; then two requests that say what computing costs find the same three
    chunks."""
    keys = [key(n) for n in (1, 2, 3)]

    def request(name: str, s_per_token: float) -> ReqContext:
        context = rig.request(name, {"anbar": {"v": 1, "prefill_s_per_token": s_per_token}})
        for index, one in enumerate(keys):
            context.set_offload_key_position(one, CHUNK_TOKENS * (index + 1))
        return context

    def found(context: ReqContext) -> list[str]:
        """As vLLM asks: all of the prompt's keys in a step."""
        for one in keys:
            rig.tier.lookup(one, context)
        return ["RETRY", rig.lookup(keys[0], context)[-1]]

    rig.run(keys, [1, 2, 3], request("r", 1.0), load=False)
    for number in range(5):
        rig.run(keys, [4, 5, 6], request(f"t{number}", 1.0), load=True)
    return [found(request("fast", 1e-12)), found(request("slow", 1.0)), rig.stats()]


def hearing(rig: Rig) -> object:
    """Answers within a step: none while nothing is known of steps; while the store hangs, a wait that ends;
    then the answer comes at once, sooner or later, since the processor may be taken."""
    context = rig.request("r")
    rig.tier.lookup(key(1), context)
    early = rig.tier.hear()
    rig.lookup(key(1), context)
    rig.tier.steps.scheduled(PrefillWork(), 1)
    rig.clock.advance(10.0)
    rig.tier.steps.ended()
    rig.store.gate.clear()
    rig.tier.lookup(key(2), context)
    hung = rig.tier.hear()
    rig.store.gate.set()
    deadline_s, number, heard = time.monotonic() + 60, 3, False
    while not heard and time.monotonic() < deadline_s:
        rig.lookup(key(2), context)
        other = rig.request(f"s{number}")
        rig.tier.lookup(key(number), other)
        heard = rig.tier.hear()
        number += not heard
    return [early, hung, heard, rig.tier.lookup(key(number), other).name, rig.tier.hear()]


def steps(rig: Rig) -> object:
    """What is read of a step that vLLM's scheduler has planned."""
    new = NewRequestData("p", list(range(128)), [], None, None, ([],), 32, None)
    cached = CachedRequestData.make_empty()
    cached.req_ids, cached.num_computed_tokens = ["a", "b"], [10, 20]
    output = SchedulerOutput.make_empty()
    output.scheduled_new_reqs, output.scheduled_cached_reqs = [new], cached
    output.num_scheduled_tokens, output.total_num_scheduled_tokens = {"p": 96, "a": 1, "b": 1}, 98
    work, num_decoding = step_work(output)
    return [work.tokens, work.pairs, num_decoding]


def metrics(rig: Rig) -> object:
    """Every metric that is reported is defined, with as many labels."""
    context = rig.request("r")
    rig.lookup(key(1), context)
    rig.run([key(1)], [1], context, load=False)
    rig.run([key(1)], [2], context, load=True)
    defined = SharedTier.build_metric_definitions({})
    data = rig.tier.get_stats().data["data"]
    return all(
        len(labels) == len(defined[name].labelnames) for name, samples in data.items() for labels in samples
    )


def parts(rig: Rig) -> object:
    """The same of a store of two copies, of which one refuses; and what is told of each."""
    lost, kept = MemoryStore("lost"), MemoryStore("kept")
    lost.outcome = Outcome.ERROR
    config = ComposedConfig("both", Rendezvous(["lost", "kept"], 2))
    store = ComposedStore(config, [Part(lost, rig.clock), Part(kept, rig.clock)], rig.clock)
    store.open()
    other = Rig(store)
    stored = other.run([key(1), key(2)], [1, 2], other.request("r"), load=False)
    data = other.tier.get_stats().data["data"]
    other.tier.shutdown()
    defined = SharedTier.build_metric_definitions({})
    fits = all(
        len(labels) == len(defined[name].labelnames) for name, samples in data.items() for labels in samples
    )
    told = {":".join(labels): value for labels, value in data["anbar_tier_part_keys"].items()}
    return [stored.success, fits, told, sorted(data["anbar_tier_part_breaker_state"])]


def tenants(rig: Rig) -> object:
    """A tenant with a data key, one whose key goes while the tier runs, and a stranger; over a directory."""
    with TemporaryDirectory() as root:
        scopes = Scopes(named={name: ScopeRules(10**6, encrypt=True) for name in ("kept", "lost")})
        keys = KeyFiles(Path(root) / "keys")
        files = FilesStore(FilesConfig(Path(root) / "store", "f", Bounds(scopes=scopes)), b"model")
        files.open()
        other = Rig(EncryptedStore(files, b"model", scopes, keys), scopes)
        found: list[object] = []
        for name in ("kept", "lost", "stranger"):
            context = other.request(name, _params(name))
            found.append(other.run([key(1)], [1], context, load=False).success)
        keys.purge("lost")
        for name in ("kept", "lost"):
            context = other.request(f"{name} again", _params(name))
            found.append(other.lookup(key(1), context)[-1])
            found.append(other.run([key(1)], [2], context, load=True).success)
        data = other.tier.get_stats().data["data"]
        new = other.request("new", {"anbar": {"v": 1, "scope": "new", "sealed": True}})
        other.run([key(9)], [3], new, load=False)
        plain = files.exists([key(9)], scope="new", timeout_s=60.0)
        found.append([other.lookup(key(9), new), [outcome.name for outcome in plain]])
        other.tier.shutdown()
    defined = SharedTier.build_metric_definitions({})
    found.append(
        all(
            len(labels) == len(defined[name].labelnames)
            for name, samples in data.items()
            for labels in samples
        )
    )
    told = {":".join(labels): value for labels, value in data["anbar_tier_scope_keys"].items()}
    return [found, told, data["anbar_tier_scope_quota_bytes"][("f", "kept")]]


def _params(scope: str) -> object:
    return {"anbar": {"v": 1, "scope": scope}}


SCENARIOS: list[Callable[[Rig], object]] = [
    round_trip, failed_load, order, worth, outage, full, wishes, pressure, break_even, hearing,
    steps, metrics, parts, tenants,
]  # fmt: skip


def plugin_errors(output: dict[str, object]) -> None:
    """What the composition root says of wrong settings."""
    from anbar.apps import plugin
    from anbar.apps.stores import open_store
    from anbar.config.store_checks import read_store

    wrong: list[dict[str, object]] = [
        {"kind": "redis"},
        {"kind": "files"},
        {"kind": "files", "path": "/tmp", "speed": 9},
        {"kind": "files", "path": "/dev/null"},
        {"kind": "files", "path": "/tmp", "capacity_bytes": -1},
    ]
    for number, config in enumerate(wrong):
        try:
            open_store(read_store(config), b"")
        except AnbarError as error:
            output[f"error {number}"] = str(error)
    with TemporaryDirectory() as root:
        opened = open_store(read_store({"kind": "files", "path": root}), b"")
        settings = store_settings(StoreConfig(path=Path(root)), Path("/anywhere"))
        output["default id"] = [opened.id, settings["id"]]
        opened.close()
    try:
        plugin.AnbarSharedTier(None, memoryview(bytearray(4)), "t", store={"kind": "files", "path": "/tmp"})
    except AnbarError as error:
        output["without configuration"] = str(error)
    try:
        tenants = {"scopes": {"a": {"quota_bytes": "much"}}}
        plugin.AnbarSharedTier(None, memoryview(bytearray(4)), "t", store={}, tenants=tenants)
    except AnbarError as error:
        output["wrong quota"] = str(error)
    try:
        plugin.AnbarSharedTier(None, memoryview(bytearray(4)), "t", store={}, load="often")
    except AnbarError as error:
        output["wrong load"] = str(error)


def main(path: Path) -> None:
    output: dict[str, object] = {}
    for scenario in SCENARIOS:
        rig = Rig()
        output[scenario.__name__] = scenario(rig)
        rig.tier.shutdown()
    plugin_errors(output)
    path.write_text(json.dumps(output))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
