"""What an engine must be like for Anbar to work with it: one suite for the emulator and for real vLLM.

Each `check_*` takes a `Target`, needs nothing but the standard library and pyzmq, and raises AssertionError
that says what is different. Prompts carry a fresh nonce, so the checks may run against an engine in use. They
are synchronous: run them beside the engine, not on its event loop. `ALL` lists them in three parts.

The engine needs `--enable-prompt-tokens-details`. What else it has (events, an adapter, development
endpoints) and whether it is the checks' alone is said by the `Target`; what it has not is not asked for.
"""

from collections.abc import Callable

from anbar.testing.engine_contract.adapters import (
    check_adapter,
    check_adapter_events,
    check_model_cards,
    check_unknown_model,
)
from anbar.testing.engine_contract.block_events import (
    check_answer_blocks,
    check_blocks_computed_again,
    check_evictions,
    check_hashes,
    check_prompt_blocks,
    check_reset,
    check_sequences,
    check_sessions,
    check_shared_blocks,
)
from anbar.testing.engine_contract.cache import (
    check_cached_tokens,
    check_exact_blocks,
    check_salts,
    check_token_accounting,
)
from anbar.testing.engine_contract.chats import (
    check_chat_choices,
    check_chat_fields,
    check_chat_logprobs,
    check_chat_token_ids,
    check_content_parts,
    check_created_tokens,
    check_open_ends,
    check_tools_in_prompts,
)
from anbar.testing.engine_contract.completions import (
    check_choices,
    check_completion_fields,
    check_echo,
    check_echo_logprobs,
    check_logprobs,
    check_logprobs_as_ids,
    check_prompt_logprobs,
    check_prompts_of_ids,
    check_request_ids,
    check_token_ids,
    check_transfer_params,
)
from anbar.testing.engine_contract.counters import (
    check_counters_of_a_hit,
    check_counters_of_a_request,
    check_counters_of_a_stop,
    check_counters_of_choices,
    check_counters_of_refusals,
    check_counters_of_unread_prompts,
)
from anbar.testing.engine_contract.development import (
    check_absent_endpoints,
    check_resets,
    check_sleep,
    check_sleep_modes,
    check_sleep_refusals,
)
from anbar.testing.engine_contract.disconnects import (
    check_disconnect_in_prefill,
    check_disconnect_while_decoding,
    check_disconnect_while_waiting,
)
from anbar.testing.engine_contract.events import (
    check_event_sources,
    check_events,
    check_replay,
)
from anbar.testing.engine_contract.families import (
    check_admission_rejections,
    check_cache_config,
    check_histograms,
    check_metric_families,
)
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
from anbar.testing.engine_contract.refused_types import (
    check_bodies,
    check_content_types,
    check_lenient_types,
    check_refused_ids,
    check_refused_shapes,
    check_refused_types,
)
from anbar.testing.engine_contract.refused_values import (
    check_late_refusals,
    check_refused_chats,
    check_refused_completions,
    check_refused_lengths,
    check_refused_tokenizing,
    check_refused_values,
)
from anbar.testing.engine_contract.replays import (
    check_replay_ignores,
    check_replay_repeats,
    check_replay_starts,
)
from anbar.testing.engine_contract.stops import (
    check_length,
    check_min_tokens,
    check_stop_strings,
    check_stop_strings_in_streams,
    check_stop_token_ids,
)
from anbar.testing.engine_contract.streams import (
    check_continuous_usage,
    check_stream_interval,
    check_stream_order,
    check_usage_chunk,
)
from anbar.testing.engine_contract.target import Target
from anbar.testing.engine_contract.tokenizing import (
    check_detokenize,
    check_special_tokens,
    check_tokenize_chats,
    check_tokenize_is_unlimited,
    check_tokenize_text,
)
from anbar.testing.engine_contract.transport import (
    check_keys,
    check_methods,
    check_pages,
)

Check = Callable[[Target], None]

ESSENTIAL: tuple[Check, ...] = (
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
"""What Anbar's own parts rely on, cheap ones first."""

PROTOCOL: tuple[Check, ...] = (
    check_keys,
    check_pages,
    check_methods,
    check_absent_endpoints,
    check_model_cards,
    check_unknown_model,
    check_tokenize_text,
    check_tokenize_is_unlimited,
    check_tokenize_chats,
    check_special_tokens,
    check_detokenize,
    check_refused_values,
    check_refused_completions,
    check_refused_lengths,
    check_refused_chats,
    check_refused_tokenizing,
    check_late_refusals,
    check_refused_types,
    check_refused_shapes,
    check_refused_ids,
    check_bodies,
    check_content_types,
    check_lenient_types,
    check_metric_families,
    check_histograms,
    check_admission_rejections,
    check_cache_config,
)
"""The API's words and shapes, to the letter: pages, refusals, metric families. They generate few tokens."""

THOROUGH: tuple[Check, ...] = (
    check_completion_fields,
    check_echo,
    check_logprobs,
    check_logprobs_as_ids,
    check_echo_logprobs,
    check_prompt_logprobs,
    check_token_ids,
    check_prompts_of_ids,
    check_choices,
    check_request_ids,
    check_transfer_params,
    check_stop_strings,
    check_stop_strings_in_streams,
    check_stop_token_ids,
    check_min_tokens,
    check_length,
    check_usage_chunk,
    check_continuous_usage,
    check_stream_interval,
    check_stream_order,
    check_chat_fields,
    check_chat_logprobs,
    check_chat_choices,
    check_chat_token_ids,
    check_open_ends,
    check_tools_in_prompts,
    check_created_tokens,
    check_content_parts,
    check_counters_of_a_request,
    check_counters_of_a_hit,
    check_counters_of_choices,
    check_counters_of_refusals,
    check_counters_of_a_stop,
    check_counters_of_unread_prompts,
    check_prompt_blocks,
    check_answer_blocks,
    check_blocks_computed_again,
    check_shared_blocks,
    check_hashes,
    check_sessions,
    check_evictions,
    check_reset,
    check_sequences,
    check_replay_repeats,
    check_replay_starts,
    check_replay_ignores,
    check_disconnect_while_decoding,
    check_disconnect_in_prefill,
    check_disconnect_while_waiting,
    check_resets,
    check_sleep,
    check_sleep_modes,
    check_sleep_refusals,
    check_adapter,
    check_adapter_events,
)
"""Everything else: answers, counters, events, replay, sleep, clients that go away. Takes minutes on a CPU."""

ALL: tuple[Check, ...] = (*ESSENTIAL, *PROTOCOL, *THOROUGH)

__all__ = ["ALL", "ESSENTIAL", "PROTOCOL", "THOROUGH", "Check", "Target"]
