"""Drains by a call, told from router to router."""

from scripted import engine_at

from anbar.apps.router.changes import Change
from anbar.apps.router.drains import DrainWords
from anbar.apps.router.engine import Fleet
from anbar.apps.router.engine_admin import set_draining
from anbar.core.outcome import Event


class Side:
    """One router, whose clock shows `now_s`."""

    def __init__(self, now_s: float) -> None:
        self.told: list[Change] = []
        self.words = DrainWords(lambda: now_s, self.told.append)
        self.engine = engine_at(1, "a")

    def drain(self, draining: bool) -> None:
        set_draining(self.engine, draining, ignore, "by a call")
        self.words.told(self.engine)

    def hear(self, other: "Side") -> None:
        """What a router that is connected again tells."""
        for word in other.words.all():
            self.words.heard(word, Fleet([self.engine]), ignore)


def ignore(event: Event) -> None:
    """Nobody listens."""


def test_the_last_word_counts_though_clocks_differ() -> None:
    """A router whose clock is a minute ahead drains an engine, another one ends that: both have it back, also
    when they tell each other everything anew. Then the first drains it again."""
    ahead, behind = Side(1060.0), Side(1000.0)
    ahead.drain(True)
    behind.hear(ahead)
    assert behind.engine.draining
    behind.drain(False)
    for _ in range(2):
        ahead.hear(behind)
        behind.hear(ahead)
        assert not ahead.engine.draining
        assert not behind.engine.draining
    ahead.drain(True)
    behind.hear(ahead)
    assert behind.engine.draining
