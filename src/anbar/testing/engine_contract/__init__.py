"""What an engine must be like for Anbar to work with it: one suite for the emulator and for real vLLM.

Each `check_*` takes a `Target`, needs nothing but the standard library and pyzmq, raises AssertionError that
says what is different, and NotApplicable where it is about something that the engine has not. Prompts carry a
fresh nonce, so the checks may run against an engine in use. They are synchronous: run them beside the engine,
not on its event loop. A function of these modules whose name begins with `check_` is a check; its module says
in which list it is.

The engine needs `--enable-prompt-tokens-details`. What else it has (events, an adapter, development
endpoints) and whether it is the checks' alone is said by the `Target`; what it has not is not asked for.
"""

from collections.abc import Callable
from types import ModuleType

from anbar.testing.engine_contract import (
    adapters,
    block_events,
    cache,
    chats,
    completions,
    counters,
    development,
    disconnects,
    embeddings,
    events,
    families,
    generation,
    names,
    pages,
    refused_ids,
    refused_tools,
    refused_types,
    refused_values,
    stops,
    streams,
    tier_families,
    tokenizing,
    transport,
)
from anbar.testing.engine_contract.target import NotApplicable, Target

Check = Callable[[Target], None]


def checks_of(*modules: ModuleType) -> tuple[Check, ...]:
    """The checks that modules define, in their order."""
    return tuple(
        value
        for module in modules
        for name, value in vars(module).items()
        if name.startswith("check_") and value.__module__ == module.__name__
    )


ESSENTIAL: tuple[Check, ...] = (
    *checks_of(pages, generation, cache, events),
    stops.check_stop_strings,
    disconnects.check_disconnect_while_decoding,
)
"""What Anbar's own parts rely on, cheap ones first."""

PROTOCOL: tuple[Check, ...] = checks_of(
    *(transport, names, tokenizing, families, tier_families),
    *(refused_values, refused_types, refused_tools, refused_ids),
)
"""The API's words and shapes, to the letter: pages, refusals, metric families. They generate few tokens."""

THOROUGH: tuple[Check, ...] = tuple(
    check
    for check in checks_of(
        *(completions, stops, streams, chats, counters),
        *(block_events, disconnects, development, adapters),
    )
    if check not in ESSENTIAL
)
"""Everything else: answers, counters, events, sleep, clients that go away. Takes minutes on a CPU."""

ALL: tuple[Check, ...] = (*ESSENTIAL, *PROTOCOL, *THOROUGH)
"""Every check of an engine that generates."""

EMBEDDING: tuple[Check, ...] = (
    pages.check_health,
    pages.check_models,
    pages.check_metrics,
    *checks_of(embeddings, transport, names, tokenizing),
)
"""Those of an engine that embeds."""

__all__ = ["ALL", "EMBEDDING", "ESSENTIAL", "PROTOCOL", "THOROUGH", "Check", "NotApplicable", "Target"]
