"""Parsing an engine's status pages: what vLLM 0.32 writes, what it may leave out, and garbage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anbar.adapters.vllm.probe import (
    AdapterFacts,
    CacheFacts,
    EventSource,
    ServedModel,
    connectable,
    parse_adapters,
    parse_event_sources,
    parse_metrics,
    parse_models,
    parse_version,
)
from anbar.core.errors import WireError

METRICS = b"""# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:cache_config_info_of_another{block_size="99"} 1.0
vllm:cache_config_info{block_size="16",enable_prefix_caching="True",engine="0",num_gpu_blocks="1000",prefix_caching_hash_algo="sha256"} 1.0
"""  # noqa: E501 a metrics page has one line for each sample


def test_models() -> None:
    """A base model and an adapter; a card without a root stands for itself."""
    page = (
        b'{"object":"list","data":[{"id":"m","object":"model","root":"/models/m","parent":null,'
        b'"max_model_len":8192,"permission":[{}]},{"id":"ad","root":"/l/ad","parent":"m"},{"id":"x"}]}'
    )
    assert parse_models(page) == (
        ServedModel("m", "/models/m", None, 8192),
        ServedModel("ad", "/l/ad", "m", None),
        ServedModel("x", "x", None, None),
    )


def test_version() -> None:
    """The release, as text."""
    assert parse_version(b'{"version":"0.32.0"}') == "0.32.0"


def test_metrics() -> None:
    """The cache's facts are found among other metrics, and like names are not mixed up."""
    assert parse_metrics(METRICS) == CacheFacts(16, 1000, True, "sha256")


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"vllm:cache_config_info",
        b'vllm:cache_config_info{block_size="None",num_gpu_blocks="None"} 1\n',
        b'# vllm:cache_config_info{block_size="16"} 1\n',
    ],
)
def test_metrics_before_the_engine_knows_them(page: bytes) -> None:
    """An engine that still starts has no such metrics, or writes None for a number."""
    assert parse_metrics(page) is None


def test_rank_that_does_not_know_yet() -> None:
    """Of several data-parallel ranks the first that tells is believed: they are configured alike."""
    page = (
        b'vllm:cache_config_info{block_size="None",engine="0"} 1\nvllm:cache_config_info{block_size="16"} 1\n'
    )
    assert parse_metrics(page) == CacheFacts(16, None, False, "")


def test_event_sources() -> None:
    """Addresses that bind to any get the engine's host, ranks come in order, silent ones are left out."""
    page = (
        b'{"1":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5558",'
        b'"replay_endpoint":null,"buffer_steps":10000},'
        b'"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"ipc:///s/e","replay_endpoint":"ipc:///s/r"},'
        b'"2":{"enable_kv_cache_events":false,"publisher":"null","endpoint":"tcp://*:5559"}}'
    )
    assert parse_event_sources(page, "10.0.0.5") == (
        EventSource(0, "ipc:///s/e", "ipc:///s/r"),
        EventSource(1, "tcp://10.0.0.5:5558", None),
    )
    assert parse_event_sources(b"{}", "h") == ()


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("tcp://*:5557", "tcp://[fe80::1]:5557"),
        ("tcp://[::]:5557", "tcp://[fe80::1]:5557"),
        ("tcp://0.0.0.0:5557", "tcp://[fe80::1]:5557"),
        ("tcp://10.0.0.7:41001", "tcp://10.0.0.7:41001"),
        ("ipc:///tmp/x", "ipc:///tmp/x"),
        ("tcp://*:0", None),
        ("tcp://*", None),
        ("udp://*:5", None),
        ("", None),
    ],
)
def test_connectable(address: str, expected: str | None) -> None:
    """What to connect to for each form of address; an IPv6 host is bracketed."""
    assert connectable(address, "fe80::1") == expected


@pytest.mark.parametrize("page", [b"", b"[]", b'{"data":[{}]}', b'{"data":3}', b"\xff", b"<html>502</html>"])
def test_pages_of_another_kind(page: bytes) -> None:
    """A proxy's error page or another server's answer is refused with the page's name."""
    for parse, name in ((parse_models, "/v1/models"), (parse_version, "/version")):
        with pytest.raises(WireError, match=name):
            parse(page)
    with pytest.raises(WireError, match="/kv_event_sources"):
        parse_event_sources(page, "h")


@given(st.binary(max_size=120))
def test_no_page_breaks_the_parsers(page: bytes) -> None:
    """Any bytes parse or raise WireError."""
    for text in (page, b"vllm:cache_config_info{" + page, b"vllm:cache_config_info{block_size=" + page):
        for parse in (parse_models, parse_version, parse_metrics):
            try:
                parse(text)
            except WireError:
                continue


LORA = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} %s
# TYPE vllm:lora_requests_info gauge
vllm:lora_requests_info{max_lora="4",running_lora_adapters="",waiting_lora_adapters=""} 1.0e+09
vllm:lora_requests_info{max_lora="4",running_lora_adapters="a,b",waiting_lora_adapters="c"} 1.7e+09
vllm:lora_requests_info{max_lora="4",running_lora_adapters="c",waiting_lora_adapters=""} 1.6e+09
"""


def test_the_newest_line_of_adapters_counts() -> None:
    """The engine keeps a line for each combination; the one with the latest time is now. Nothing runs when no
    request does, although the last line still names who did."""
    assert parse_adapters((LORA % "3.0").encode()) == AdapterFacts(4, frozenset({"a", "b"}))
    assert parse_adapters((LORA % "0.0").encode()) == AdapterFacts(4)
    assert parse_adapters(METRICS) == AdapterFacts()
    assert parse_adapters(b"\nvllm:lora_requests_info{max_lora=") == AdapterFacts()
