"""One emulated engine without its sockets; what a process would lose with its life is in `Life`."""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from anbar.adapters.vllm.block_hash import root_hash
from anbar.apps.emulator.answers import Answer, AnswerRules, Finish, Writer
from anbar.apps.emulator.faults import FaultBox
from anbar.apps.emulator.generate_request import Served
from anbar.apps.emulator.kv import WireEvents
from anbar.apps.emulator.loop import EngineLoop
from anbar.apps.emulator.metrics import NO_LOAD, Gauges
from anbar.apps.emulator.pacing import LivePace, ModelClock
from anbar.apps.emulator.records import Records
from anbar.apps.emulator.sequence import SequencePlan, SequenceRun, TokenKeys
from anbar.apps.emulator.settings import EngineSettings, Runner
from anbar.apps.emulator.spoiled_events import EventFaults, SpoilingPublisher
from anbar.apps.emulator.stats import RequestStats
from anbar.apps.emulator.text import load_text
from anbar.apps.emulator.tier_stats import TierStats
from anbar.core.ids import RequestId
from anbar.sim.engine.engine import Engine, Tiers
from anbar.sim.engine.events import EngineEvent
from anbar.sim.engine.request import EngineRequest
from anbar.sim.engine.step import Step, StepResult

logger = logging.getLogger(__name__)

_PARTS = ("weights", "kv_cache")
"""What sleeps, by the tags of /wake_up."""


class SleepMode(Enum):
    """What becomes of requests that run when the engine goes to sleep."""

    ABORT = "abort"
    WAIT = "wait"
    """They are finished first."""
    KEEP = "keep"
    """They go on after the waking."""


@dataclass(slots=True)
class Adapter:
    """A LoRA adapter that is loaded."""

    id: int
    path: str


@dataclass(slots=True)
class Life:
    """An engine process from its start to its end: a cold cache, counters at zero, events from sequence 0."""

    engine: Engine
    loop: EngineLoop
    stats: RequestStats
    publisher: SpoilingPublisher | None
    sleep_level: int | None = None
    """None: awake."""
    asleep: set[str] = field(default_factory=set)
    """Parts of the memory that have not been woken."""
    gauges: Gauges = NO_LOAD
    adapters: dict[tuple[str, str], float] = field(default_factory=dict)
    """When these adapters last ran and these waited, in seconds since 1970."""
    coming: dict[RequestId, asyncio.TimerHandle] = field(default_factory=dict)
    """Sequences that are still in front of the engine."""


class EngineState:
    """What outlives a restart, and the life that it is in. Made and used on one event loop."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.text = load_text(settings.model_dir, settings.shape.max_model_len)
        self.pace = LivePace(settings.cost)
        self.event_faults = EventFaults()
        self.records = Records()
        self.faults = FaultBox()
        self.answer: str | None = None
        """A fixed text that every request gets as its answer; None draws one from the prompt."""
        self.healthy = True
        """False: /health answers 503, as when the engine core died under a living API server."""
        self.is_dying = False
        """Told to die, it finishes its answer to that and breaks all other connections."""
        self.num_defects = 0
        """Requests that failed by the emulator's own fault."""
        self.adapters: dict[str, Adapter] = {}
        self.started_s = int(time.time())
        int_hashes = settings.events is None or settings.events.int_hashes
        self._wire = WireEvents(settings.store_owner, int_hashes=int_hashes)
        self._writer = Writer(self.text, settings.seed)
        self.served = Served(
            settings.served_names,
            self.adapters,
            settings.force_include_usage,
            settings.auto_tools,
            settings.max_n,
            settings.max_prompts,
        )
        self._root = root_hash(settings.hash_seed)
        self._numbers = itertools.count()
        self._adapter_numbers = itertools.count(1)
        self._life: Life | None = None
        self._load_configured()

    # Its life

    @property
    def life(self) -> Life:
        """The present one; only while it lives."""
        assert self._life is not None, "the engine has not been started"
        return self._life

    @property
    def stats(self) -> RequestStats:
        return self.life.stats

    @property
    def publisher(self) -> SpoilingPublisher | None:
        """Of the KV events; None when it publishes none."""
        return self.life.publisher

    async def begin_life(self) -> None:
        """Start cold. WireError when the events' addresses cannot be used."""
        settings = self.settings
        publisher = None
        if settings.events is not None:
            publisher = SpoilingPublisher(settings.events, self.event_faults)
            await publisher.start()
        # The pace stands for the cost that it has at the moment.
        engine = Engine(settings.shape, self.pace, Tiers(settings.host_tier, settings.shared))
        clock = ModelClock(asyncio.get_running_loop(), settings.speed)
        generates = settings.runner is Runner.GENERATE
        tiers = TierStats(settings) if settings.host_tier is not None else None
        stats = RequestStats(settings.shape.max_model_len, settings.speed, generates=generates, tiers=tiers)
        self._life = Life(engine, EngineLoop(engine, clock, self), stats, publisher)
        self._load_configured()
        self.started_s = int(time.time())

    async def end_life(self) -> None:
        """Everything stops at once, as when the process is killed. Idempotent."""
        life = self._life
        if life is None:
            return
        life.loop.stop()
        for handle in life.coming.values():
            handle.cancel()
        life.coming.clear()
        self.faults.forget_hung()
        if life.publisher is not None:
            await life.publisher.stop()

    # What it serves

    def load_adapter(self, name: str, path: str) -> None:
        """A new adapter, or the same one from another path."""
        known = self.adapters.get(name)
        self.adapters[name] = Adapter(known.id if known else next(self._adapter_numbers), path)

    def _load_configured(self) -> None:
        self.adapters.clear()
        for name, path in self.settings.loras.items():
            self.load_adapter(name, path)

    # Sequences

    def write_answer(
        self, prompt: Sequence[int], seed: int | None, choice: int, rules: AnswerRules
    ) -> Answer:
        """The answer to a prompt, which only has to be waited for."""
        fixed = self.answer if self.answer is not None else rules.script
        if fixed is not None:
            return Answer(self.text, self._writer.fixed(fixed), rules)
        return Answer(self.text, self._writer.draw(prompt, seed, choice), rules)

    def sequence(
        self, plan: SequencePlan, on_tokens: Callable[[int, bool], None], on_abort: Callable[[], None]
    ) -> SequenceRun:
        """A sequence of this life, not submitted yet."""
        keys = TokenKeys(plan.prompt, plan.answer, self.settings.shape.block_size, plan.identity)
        keys.session, keys.root = plan.session, self._root
        if plan.identity.lora is not None:
            adapter = self.adapters.get(plan.identity.lora)
            keys.lora_id = adapter.id if adapter is not None else None
        request = EngineRequest(
            RequestId(f"{plan.name}-{next(self._numbers)}"),
            len(plan.prompt),
            plan.answer.length,
            keys,
            reads_cache=plan.reads_cache,
            max_load_tokens=plan.transfer.max_load_tokens,
            max_offload_tokens=plan.transfer.max_offload_tokens,
            loads_shared=plan.transfer.loads_shared,
            wish=plan.transfer.wish,
            num_remote_tokens=len(plan.prompt) if self.settings.nixl and plan.transfer.takes else 0,
        )
        run = SequenceRun(request, keys, on_tokens, on_abort, self.life.loop.clock.now_s())
        run.give_up, run.num_text_tokens = plan.give_up, plan.num_text_tokens
        return run

    def submit(self, run: SequenceRun) -> None:
        """Let the engine have a sequence, once it is through the front end. Choices of a prompt that come
        together wait together: as in vLLM it is tokenized once for all of them."""
        life = self.life
        front_s = self.pace.cost.front_seconds(run.num_text_tokens) / self.settings.speed
        if front_s <= 0:
            life.loop.submit(run)
            return

        def enter() -> None:
            del life.coming[run.id]
            self.supervise(lambda: life.loop.submit(run), run.give_up)

        life.coming[run.id] = asyncio.get_running_loop().call_later(front_s, enter)

    def withdraw(self, run: SequenceRun) -> None:
        """Its client is gone."""
        handle = self.life.coming.pop(run.id, None)
        if handle is not None:
            handle.cancel()
        else:
            self.life.loop.withdraw(run)
            self._take_gauges()
        run.forget()

    def sequence_finished(self, run: SequenceRun, finish: Finish, max_tokens: int) -> None:
        """A sequence ended, by itself or not."""
        self.stats.sequence_finished(run, finish, max_tokens)

    # Sleep

    def sleep(self, level: int, mode: SleepMode, on_asleep: Callable[[], None]) -> None:
        """Start no step until `wake`; level 1 and 2 drop the cache, level 0 only pauses. `on_asleep` is
        called when that is done, which with `WAIT` is when what runs has finished."""
        life = self.life
        life.sleep_level = level
        if level and "weights" not in life.asleep:
            life.asleep = set(_PARTS)
        if mode is SleepMode.ABORT:
            life.loop.abort_all()

        def fall_asleep() -> None:
            if level and life.sleep_level is not None:  # else it was woken before it fell asleep
                life.loop.clear_cache()
            on_asleep()

        if mode is SleepMode.WAIT:
            life.loop.pause_when_done(fall_asleep)
        else:
            life.loop.pause()
            fall_asleep()

    def wake(self, tags: Sequence[str] | None) -> bool:
        """Wake these parts of the memory, or all; False while others are asleep, and the engine with them.
        As in vLLM, nothing is woken by tags of which one is not asleep."""
        life = self.life
        parts = life.asleep if tags is None else set(tags) - {"scheduling"}
        if parts <= life.asleep:
            life.asleep = life.asleep - parts
        if life.asleep:
            return False
        life.sleep_level = None
        life.loop.resume()
        return True

    # What the loop says

    def supervise(self, act: Callable[[], None], give_up: Callable[[], None]) -> None:
        """Do something for one request; a failure is counted, and ends that request alone."""
        try:
            act()
        except Exception as error:  # noqa: BLE001 - the supervisor of what is done later, counted
            self.num_defects += 1
            logger.error("a request failed: %s", type(error).__name__)
            give_up()

    def published(self, events: Sequence[EngineEvent]) -> None:
        publisher = self.publisher
        if publisher is not None:
            publisher.publish(self._wire.batch(events), time.time())

    def step_ended(self, step: Step, result: StepResult) -> None:
        self.stats.step_ended(result)
        connector, tiers = self.life.engine.connector, self.stats.tiers
        if connector is not None and tiers is not None:
            tiers.step_ended(step, connector, self.pace.cost)
        self._take_gauges()

    def _take_gauges(self) -> None:
        engine = self.life.engine
        self.life.gauges = Gauges(
            engine.num_running, engine.num_waiting, engine.num_deferred, engine.usage, engine.loading
        )
        if self.settings.serves_adapters:
            self.life.adapters[self.life.loop.adapters()] = time.time()

    def tokens(self, run: SequenceRun, at_s: float) -> None:
        self.stats.tokens(run, at_s)
