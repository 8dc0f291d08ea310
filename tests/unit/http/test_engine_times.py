"""Times that vLLM reports with `--enable-per-request-metrics`, in the shapes of its answers."""

import pytest

from anbar.adapters.http.engine_times import EngineTimes, find_engine_times

METRICS = (
    b'"metrics":{"time_to_first_token_ms":12.5,"generation_time_ms":30.0,"queue_time_ms":2.5,'
    b'"mean_itl_ms":3.0,"tokens_per_second":90.1,"speculative_decoding":null}'
)
USAGE = b'"usage":{"prompt_tokens":5,"total_tokens":9,"completion_tokens":4}'


@pytest.mark.parametrize(
    ("tail", "found"),
    [
        (b'{"choices":[],' + USAGE + b"," + METRICS + b',"kv_transfer_params":null}', True),
        (b'data: {"choices":[],' + USAGE + b"," + METRICS + b"}\n\ndata: [DONE]\n\n", True),
        (
            METRICS.replace(b'"speculative_decoding":null', b'"speculative_decoding":{"num_spec_steps":1}'),
            True,
        ),
        (METRICS.replace(b":", b" : "), True),
        (b'{"choices":[],' + USAGE + b"}", False),
        (b'{"choices":[],' + USAGE + b',"metrics":null}', False),
        (METRICS.replace(b"12.5", b"null"), False),
        (METRICS.replace(b"2.5,", b'"soon",'), False),
        (METRICS[:-20], False),
        (b'{"text":"\\"metrics\\":{\\"queue_time_ms\\":1}"}', False),
        (b"", False),
    ],
)
def test_times_are_found_where_they_are(tail: bytes, found: bool) -> None:
    """In a whole answer, in a stream's usage event, beside other members; and in nothing else: not in text
    that looks like it, not when they are cut or not numbers."""
    want = EngineTimes(queue_s=0.0025, ttft_s=0.015, itl_s=0.003) if found else None
    assert find_engine_times(tail) == want


def test_an_answer_of_one_token_has_no_time_between_two() -> None:
    """vLLM then says null."""
    found = find_engine_times(METRICS.replace(b"3.0", b"null"))
    assert found == EngineTimes(queue_s=0.0025, ttft_s=0.015, itl_s=None)
