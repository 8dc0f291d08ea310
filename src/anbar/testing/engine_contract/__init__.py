"""What an engine must be like for Anbar to work with it: one suite for the fake and for real vLLM.

Each `check_*` takes a `Target`, needs nothing but the standard library and pyzmq, and raises AssertionError
that says what is different. Prompts carry a fresh nonce, so the checks may run against an engine in use. They
are synchronous: run them beside the engine, not on its event loop. `ALL` lists them.

The engine needs `--enable-prompt-tokens-details`; the checks of events are skipped without `events`/`replay`.
"""

from collections.abc import Callable

from anbar.testing.engine_contract.cache import (
    check_cached_tokens,
    check_exact_blocks,
    check_salts,
    check_token_accounting,
)
from anbar.testing.engine_contract.events import check_event_sources, check_events, check_replay
from anbar.testing.engine_contract.generation import (
    check_chat,
    check_chat_stream_begins_with_role,
    check_completion,
    check_n_and_batches,
    check_stop,
    check_stream_usage,
    check_streams,
)
from anbar.testing.engine_contract.pages import (
    check_disconnect_aborts,
    check_health,
    check_metrics,
    check_models,
    check_refusals,
    check_tokenize,
)
from anbar.testing.engine_contract.target import Target

ALL: tuple[Callable[[Target], None], ...] = (
    check_health,
    check_models,
    check_metrics,
    check_completion,
    check_chat,
    check_streams,
    check_chat_stream_begins_with_role,
    check_stream_usage,
    check_stop,
    check_n_and_batches,
    check_cached_tokens,
    check_exact_blocks,
    check_salts,
    check_token_accounting,
    check_tokenize,
    check_refusals,
    check_disconnect_aborts,
    check_event_sources,
    check_events,
    check_replay,
)
"""Every check, cheap ones first."""

__all__ = ["ALL", "Target"]
