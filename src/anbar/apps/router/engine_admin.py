"""`POST /admin/engines/{id}/drain` and `/undrain`: an engine finishes what it has and gets nothing new."""

from collections.abc import Callable
from urllib.parse import unquote_to_bytes

from anbar.adapters.http.message import Answer, Request, error_answer, json_answer
from anbar.apps.router.engine import Engine, Fleet
from anbar.apps.router.local import must_be_local
from anbar.core.errors import RequestError
from anbar.core.outcome import Emit, EngineStateChanged

PREFIX = b"/admin/engines/"
_VERBS = {b"drain": True, b"undrain": False}


def set_draining(engine: Engine, draining: bool, emit: Emit, why: str) -> None:
    """Drain an engine, or end that, and tell if it changes anything."""
    before, engine.draining = engine.state, draining
    if engine.state is not before:
        emit(EngineStateChanged(engine.id, before, engine.state, why))


class EngineAdmin:
    """Changes engines by their ids."""

    def __init__(self, fleet: Fleet, emit: Emit, on_word: Callable[[Engine], None]) -> None:
        """`on_word` hears of each engine that was drained, or no longer, by a call."""
        self._fleet = fleet
        self._emit = emit
        self._on_word = on_word

    def answer(self, request: Request) -> Answer:
        """Do what the path says; the answer tells how many requests the engine still has.

        A web page can have a browser send such a request without reading its answer: what names an origin is
        refused."""
        must_be_local(request)
        if request.header(b"origin") is not None:
            raise RequestError("Not for web pages.", status=403, code="local_only")
        name, _, verb = request.path[len(PREFIX) :].rpartition(b"/")
        if verb not in _VERBS:
            raise RequestError("There is no such call: drain and undrain are.", status=404, code="not_found")
        if request.method != b"POST":
            wrong = RequestError("Only POST is allowed here.", status=405, code="method_not_allowed")
            return error_answer(wrong, ((b"allow", b"POST"),))
        engine = self._find(unquote_to_bytes(name).decode("utf-8", "replace"))
        set_draining(engine, _VERBS[verb], self._emit, "by an admin call")
        self._on_word(engine)
        return json_answer(
            200,
            {
                "id": engine.id,
                "state": engine.state.value,
                "in_flight": engine.load.num_in_flight + engine.load.num_elsewhere,
            },
        )

    def _find(self, name: str) -> Engine:
        for engine in self._fleet:
            if engine.id == name:
                return engine
        raise RequestError(f"There is no engine {name[:200]!r}.", status=404, code="not_found")
