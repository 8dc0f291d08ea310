"""Playing a script: exact bytes as an answer, no faster than the client reads them."""

from collections import deque

from anbar.apps.emulator.faults import Script
from anbar.apps.emulator.records import Ending, Seen
from anbar.apps.emulator.sink import Sink


class Playing:
    """One script on its way out."""

    def __init__(self, script: Script, sink: Sink, seen: Seen) -> None:
        self._script = script
        self._sink = sink
        self._seen = seen
        self._left = deque(script.chunks)

    def start(self) -> None:
        """Begin the answer."""
        script = self._script
        if not script.chunked:
            self._sink.whole(script.status, b"".join(script.chunks), script.headers)
            self._seen.end(Ending.ANSWERED)
            return
        self._sink.exchange.on_resume = self._go_on
        self._sink.start_stream(script.headers, script.status)
        self._go_on()

    def abandon(self) -> None:
        """The client is gone."""
        self._left.clear()
        self._seen.end(Ending.CANCELLED)

    def _go_on(self) -> None:
        exchange = self._sink.exchange
        while self._left and not exchange.paused:
            self._sink.part(self._left.popleft())
        if not self._left and not exchange.over:
            self._sink.end()
            self._seen.end(Ending.ANSWERED)
