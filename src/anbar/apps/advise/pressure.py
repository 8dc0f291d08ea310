"""What live metrics tell: pressure. What came again, and after how much else, is in none of them."""

import json
from collections.abc import Callable, Iterator, Mapping
from urllib.error import URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from anbar.core.errors import ConfigError
from anbar.plan.answer import Answer, Figure, in_words

_TIMEOUT_S = 10.0
_MOST_BYTES = 16 * 1024**2

SNIPPET = """\
router:
  record:
    path: block-log.jsonl
"""

_SUMS = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:num_preemptions_total",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:external_prefix_cache_queries_total",
    "vllm:external_prefix_cache_hits_total",
    "vllm:prompt_tokens_total",
    "vllm:request_success_total",
)
_MAXIMA = ("vllm:kv_cache_usage_perc",)
_BUSY = 0.9


def read_pressure(url: str, minutes: int) -> Answer:
    """Of one engine's `/metrics`, or of a Prometheus server that scrapes many.

    Raises ConfigError: it cannot be reached, or knows nothing of vLLM.
    """
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
        raise ConfigError(f"command line --metrics: is {url!r}; allowed: http://HOST:PORT/metrics")
    is_page = urlsplit(url).path.rstrip("/").endswith("metrics")
    try:
        found = _page(url) if is_page else _prometheus(url.rstrip("/"))
    except ConfigError as error:
        if is_page:
            raise
        text = (
            "was taken for a Prometheus server, since it does not end in /metrics, as an engine's page does"
        )
        raise ConfigError(f"{url}: {text}; {error}") from error
    if not found:
        raise ConfigError(f"{url}: has no metrics of vLLM (names that begin with vllm:)")
    return _answer(url, found, minutes)


def _page(url: str) -> Mapping[str, float]:
    sums: dict[str, float] = {}
    try:
        for family in text_string_to_metric_families(_get(url)):
            for sample in family.samples:
                if sample.name in _SUMS:
                    sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
                elif sample.name in _MAXIMA:
                    sums[sample.name] = max(sums.get(sample.name, 0.0), sample.value)
    except ValueError as error:
        raise ConfigError(f"{url}: is no page of metrics: {error}") from error
    return sums


def _prometheus(url: str) -> Mapping[str, float]:
    queries = {name: f"sum({name})" for name in _SUMS} | {name: f"max({name})" for name in _MAXIMA}
    found = {}
    for name, query in queries.items():
        text = _get(f"{url}/api/v1/query?{urlencode({'query': query})}")
        try:
            result = json.loads(text)["data"]["result"]
            if result:
                found[name] = float(result[0]["value"][1])
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise ConfigError(f"{url}: does not answer as Prometheus does") from error
    return found


def _get(url: str) -> str:
    try:
        with urlopen(url, timeout=_TIMEOUT_S) as answer:
            content: bytes = answer.read(_MOST_BYTES)
            return content.decode()
    except (URLError, OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{url}: cannot be read: {getattr(error, 'reason', error)}") from error


def _answer(url: str, found: Mapping[str, float], minutes: int) -> Answer:
    figures = tuple(_figures(found.get))
    conclusion = (
        f"{' '.join(_says(found.get))} This is pressure; what of your traffic comes again, and which tier "
        f"would hold it, is in no metric, so there is no verdict. Record a block log for {minutes} minutes "
        f"(below), then: anbar advise block-log.jsonl --model … --gpu …"
    )
    return Answer(
        "Pressure", figures, conclusion, (f"read once from {url}; totals are since engines started",)
    )


def _figures(get: Callable[[str], float | None]) -> Iterator[Figure]:
    for name, label, unit in (
        ("vllm:kv_cache_usage_perc", "KV in use by running requests, highest", "share"),
        ("vllm:num_requests_running", "requests that run", "count"),
        ("vllm:num_requests_waiting", "requests that wait", "count"),
        ("vllm:num_preemptions_total", "preemptions", "count"),
    ):
        value = get(name)
        if value is not None:
            yield Figure(label, value, unit, name)
    for label, prefix in (
        ("prompt tokens found on the GPUs", "vllm:prefix_cache"),
        ("prompt tokens found below them", "vllm:external_prefix_cache"),
    ):
        hits, queries = get(f"{prefix}_hits_total"), get(f"{prefix}_queries_total")
        if hits is not None and queries:
            yield Figure(label, hits / queries, "share", f"{prefix}_hits_total / _queries_total")


def _says(get: Callable[[str], float | None]) -> Iterator[str]:
    usage, waiting = get("vllm:kv_cache_usage_perc") or 0.0, get("vllm:num_requests_waiting") or 0.0
    preempted, done = get("vllm:num_preemptions_total") or 0.0, get("vllm:request_success_total") or 0.0
    if preempted:
        of = f" in {done:,.0f} requests" if done else ""
        yield f"{preempted:,.0f} preemptions{of}: running requests have not had the room."
    if usage > _BUSY:
        yield f"KV is {in_words(usage, 'share')} in use: the pool is what limits now."
    if waiting and usage <= _BUSY:
        yield f"{waiting:,.0f} requests wait though KV has room: computing is what limits now."
    if not preempted and not waiting and usage <= _BUSY:
        yield "No requests wait, none were preempted: there is no pressure now."
    yield "The usage that vLLM reports is of running requests; it is not working set over capacity."
