"""The small pages around generation: models, health, version, load, metrics, cache, sleep."""

from collections.abc import Callable, Mapping
from urllib.parse import parse_qs

from anbar.adapters.http.message import Answer, Request
from anbar.apps.emulator import metrics
from anbar.apps.emulator.body import dump
from anbar.apps.emulator.body_models import ResetQuery, SleepQuery, typed_query
from anbar.apps.emulator.errors import Json
from anbar.apps.emulator.shapes import VERSION
from anbar.apps.emulator.state import EngineState, SleepMode


def answer(page: object) -> Answer:
    """A page of JSON."""
    return Answer(200, dump(page))


EMPTY = Answer(200, b"", ())

Later = Callable[[Callable[[Answer], None]], None]
"""An answer that is not there yet: it is given to the function that this one gets."""


class Pages:
    """Reads and small changes of one engine's state."""

    def __init__(self, state: EngineState) -> None:
        self._state = state

    def health(self, _: Request) -> Answer:
        """200, or 503 when the engine core is dead; empty either way."""
        return EMPTY if self._state.healthy else Answer(503, b"", ())

    def version(self, _: Request) -> Answer:
        return answer({"version": VERSION})

    def load(self, _: Request) -> Answer:
        """Requests being served; always 0 without `--enable-server-load-tracking`."""
        state = self._state
        return answer({"server_load": state.records.num_open if state.settings.track_load else 0})

    def metrics(self, _: Request) -> Answer:
        """What Prometheus reads."""
        state = self._state
        life = state.life
        adapters = life.adapters if state.settings.serves_adapters else None
        name = state.settings.served_names[0]
        page = metrics.render(name, life.engine, life.stats, life.gauges, life.sleep_level, adapters)
        return Answer(200, page, ((b"content-type", metrics.CONTENT_TYPE),))

    def models(self, _: Request) -> Answer:
        """The base model under its names, then adapters."""
        state, settings = self._state, self._state.settings
        root, length = settings.root or str(settings.model_dir), settings.shape.max_model_len
        cards = [self._card(name, None, root, length) for name in settings.served_names]
        base = settings.served_names[0]
        cards += [self._card(name, base, adapter.path, None) for name, adapter in state.adapters.items()]
        return answer({"object": "list", "data": cards})

    def event_sources(self, _: Request) -> Answer:
        """Where the KV events are, by data-parallel rank."""
        events, publisher = self._state.settings.events, self._state.publisher
        if events is None or publisher is None:
            return answer({})
        source = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": publisher.endpoint,
            "replay_endpoint": publisher.replay_endpoint or None,
            "buffer_steps": events.buffer_steps,
            "hwm": events.hwm,
            "max_queue_size": events.max_queue_size,
            "topic": events.topic,
        }
        return answer({"0": source})

    def reset_prefix_cache(self, request: Request) -> Later:
        """Drop the device cache, by `reset_external` host RAM too; `success` is false while requests hold
        blocks, which by `reset_running_requests` they give back, to be computed again."""
        query, loop = typed_query(_query(request), ResetQuery), self._state.life.loop
        tiers, preempts = query.reset_external, query.reset_running_requests

        def reset(deliver: Callable[[Answer], None]) -> None:
            cleared = loop.clear_cache(preempts=preempts, tiers=tiers)
            deliver(answer({"success": cleared}))

        return lambda deliver: loop.between_steps(lambda: reset(deliver))

    def reset_other_cache(self, _: Request) -> Answer:
        """There is no cache of media or of encoders."""
        return EMPTY

    def sleep(self, request: Request) -> Later:
        """What runs is given up, finished or kept, by `mode`; new requests wait. The answer comes when the
        engine is asleep."""
        query = typed_query(_query(request), SleepQuery)
        level, mode = query.level, SleepMode(query.mode)
        asleep = answer({"status": "sleeping", "level": level})
        return lambda deliver: self._state.sleep(level, mode, lambda: deliver(asleep))

    def wake_up(self, request: Request) -> Answer:
        """Go on, once all parts of the memory have been named by `tags`; without any they all are."""
        tags = parse_qs(request.target.partition(b"?")[2].decode("latin-1")).get("tags")
        is_awake = self._state.wake(tags)
        return answer({"status": "awake" if is_awake else "sleeping", "tags": tags})

    def is_sleeping(self, _: Request) -> Answer:
        return answer({"is_sleeping": self._state.life.sleep_level is not None})

    def _card(self, name: str, parent: str | None, root: str, length: int | None) -> Json:
        created = self._state.started_s
        permission = {
            "id": f"modelperm-{name}",
            "object": "model_permission",
            "created": created,
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        return {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "vllm",
            "root": root,
            "parent": parent,
            "max_model_len": length,
            "permission": [permission],
        }


def _query(request: Request) -> Mapping[str, str]:
    parsed = parse_qs(request.target.partition(b"?")[2].decode("latin-1"), keep_blank_values=True)
    return {name: values[-1] for name, values in parsed.items()}
