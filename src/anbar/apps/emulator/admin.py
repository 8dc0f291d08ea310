"""The emulator's own calls, `/emulator/...`: faults, pace, death. `GET /emulator` describes them."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields

from anbar.adapters.http.message import Answer, Request
from anbar.apps.emulator.body import parse_json
from anbar.apps.emulator.bounds import DAY_S, hold
from anbar.apps.emulator.errors import Json, invalid
from anbar.apps.emulator.faults import Fault
from anbar.apps.emulator.pacing import steady
from anbar.apps.emulator.pages import answer
from anbar.apps.emulator.records import Ending
from anbar.apps.emulator.spoiled_events import EventFaults
from anbar.apps.emulator.state import EngineState
from anbar.apps.emulator.typed_fields import Settings, WrongField, convert, describe
from anbar.sim.engine.store import EVERY_PART, StoreFault, StoreFaultKind, StorePart


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast the engine is from its next step on; all 0: as fast as it can."""

    step_s: float = 0.0
    prefill_s_per_token: float = 0.0
    front_s: float = 0.0

    def __post_init__(self) -> None:
        hold(self, step_s=(0, DAY_S), prefill_s_per_token=(0, DAY_S), front_s=(0, DAY_S))


@dataclass(frozen=True, slots=True)
class Death:
    """Die as by SIGKILL: for so many seconds, or for ever when negative, and come back cold."""

    for_s: float = -1.0

    def __post_init__(self) -> None:
        hold(self, for_s=(-DAY_S, DAY_S))


@dataclass(frozen=True, slots=True)
class StoreTrouble:
    """How the store fails for this process' engines from their next call on it, or the part of it whose id is
    `part`. `delay_s`: of `slow`, in the model's time. Null: it does no more."""

    kind: StoreFaultKind | None = None
    part: str = EVERY_PART
    delay_s: float = 1.0

    def __post_init__(self) -> None:
        hold(self, delay_s=(0, DAY_S))


@dataclass(frozen=True, slots=True)
class Health:
    """What /health says: false is 503, as when the engine core died under a living API server."""

    healthy: bool = True


@dataclass(frozen=True, slots=True)
class FixedAnswer:
    """The text that every request is answered with; null draws one from the prompt again."""

    text: str | None = None


@dataclass(frozen=True, slots=True)
class Nothing:
    """No fields."""


class Admin:
    """Answers `/emulator/...`. `die_for(seconds)` ends the engine's life, for ever if negative."""

    def __init__(self, state: EngineState, die_for: Callable[[float], None]) -> None:
        self._state = state
        self._die_for = die_for

    def posts(self) -> dict[str, Callable[[Request], Answer]]:
        """The calls that change something, by path."""
        return {
            "/emulator/fault": _call(Fault, self._arm),
            "/emulator/events": _call(EventFaults, self._spoil_events),
            "/emulator/store": _call(StoreTrouble, self._trouble_store),
            "/emulator/pace": _call(Pace, self._set_pace),
            "/emulator/answer": _call(FixedAnswer, self._fix_answer),
            "/emulator/health": _call(Health, self._set_health),
            "/emulator/clear": _call(Nothing, self._clear),
            "/emulator/die": _call(Death, self._die),
            "/emulator/restart": _call(Nothing, self._restart),
        }

    def describe(self, _: Request) -> Answer:
        """The calls, their fields with defaults, and allowed words."""
        about = {
            "/emulator/fault": (
                Fault,
                "Arm a fault for the next `count` requests of its `scope` (0: all, until /emulator/clear).",
            ),
            "/emulator/events": (EventFaults, "What to do to the next batches of KV events."),
            "/emulator/store": (StoreTrouble, StoreTrouble.__doc__),
            "/emulator/pace": (Pace, Pace.__doc__),
            "/emulator/answer": (FixedAnswer, FixedAnswer.__doc__),
            "/emulator/health": (Health, Health.__doc__),
            "/emulator/clear": (Nothing, "Disarm all faults, forget all records; what hangs goes on."),
            "/emulator/die": (Death, Death.__doc__),
            "/emulator/restart": (Nothing, "Die and come back at once: cold, events from sequence 0."),
        }
        page = {
            f"POST {path}": {"what": text, "fields": describe(kind)} for path, (kind, text) in about.items()
        }
        return answer({**page, "GET /emulator/requests": {"what": "How requests ended.", "fields": {}}})

    def requests(self, _: Request) -> Answer:
        """How generation requests ended, and a count of all others by path."""
        records = self._state.records
        endings = {ending.value: records.count(ending) for ending in Ending}
        return answer({"generation": endings, "others": records.others})

    def _arm(self, fault: Fault) -> Json:
        self._state.faults.arm(fault)
        return {"armed": fault.kind.value}

    def _spoil_events(self, wanted: EventFaults) -> Json:
        faults = self._state.event_faults  # changed in place: publishers hold it
        for field in fields(wanted):
            setattr(faults, field.name, getattr(wanted, field.name))
        return asdict(faults)

    def _trouble_store(self, trouble: StoreTrouble) -> Json:
        shared = self._state.settings.shared
        if shared is None:
            raise invalid("this engine has no shared store", "body.kind")
        known = sorted(part.id for part in shared.store.parts() if isinstance(part, StorePart))
        if trouble.part not in (EVERY_PART, *known):
            allowed = ", ".join(known) or "none, the store is made of no others"
            raise invalid(f"part is {trouble.part!r}; allowed: {allowed}", "body.part")
        if trouble.kind is None:
            shared.faults.pop(trouble.part, None)
        else:
            shared.faults[trouble.part] = StoreFault(trouble.kind, trouble.delay_s)
        return {part: fault.kind.value for part, fault in sorted(shared.faults.items())}

    def _set_pace(self, pace: Pace) -> Json:
        self._state.pace.cost = steady(**asdict(pace))
        return asdict(pace)

    def _fix_answer(self, fixed: FixedAnswer) -> Json:
        self._state.answer = fixed.text
        return asdict(fixed)

    def _set_health(self, health: Health) -> Json:
        self._state.healthy = health.healthy
        return asdict(health)

    def _clear(self, _: Nothing) -> Json:
        self._state.faults.clear()
        if self._state.settings.shared is not None:
            self._state.settings.shared.faults.clear()
        self._state.records.clear()
        return {"cleared": True}

    def _die(self, death: Death) -> Json:
        self._die_for(death.for_s)
        return {"dead_for_s": death.for_s}

    def _restart(self, _: Nothing) -> Json:
        self._die_for(0.0)
        return {"restarting": True}


def _call(kind: type[Settings], act: Callable[[Settings], Json]) -> Callable[[Request], Answer]:
    def handle(request: Request) -> Answer:
        body = parse_json(request) if request.body else {}
        try:
            settings = convert(body, kind)
        except WrongField as error:
            raise invalid(str(error), f"body.{error.field}") from error
        return answer(act(settings))

    return handle
