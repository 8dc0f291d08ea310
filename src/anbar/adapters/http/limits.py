"""What the HTTP server and the upstream client tolerate, and for how long."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits of one client connection."""

    max_target_bytes: int = 8 * 1024
    """Longest request target; longer is 414."""

    max_headers: int = 128
    """Most header lines of one request; more is 431."""

    max_header_bytes: int = 32 * 1024
    """Size of all header lines together; more is 431."""

    max_body_bytes: int = 32 * 1024**2
    """Longest body; more is 413, before reading it when the length is declared."""

    header_timeout_s: float = 10.0
    """From the first byte of a request to the end of its headers; later is 408."""

    body_timeout_s: float = 30.0
    """Grace for a body, to which `min_body_bytes_per_s` adds time for what has arrived; later is 408."""

    min_body_bytes_per_s: float = 1024.0
    """Slowest upload that is not taken for an attack."""

    keep_alive_s: float = 75.0
    """How long a connection may wait for its next request."""

    write_stall_s: float = 300.0
    """How long a client may take to read what waits for it until the engine may be read again (or, of the
    last answer, all of it): it is held to a rate, some `high_water_bytes` in this time."""

    high_water_bytes: int = 64 * 1024
    """Unsent bytes per client above which the engine's side is not read."""

    pipelined_bytes: int = 1024**2
    """Unserved requests (heads and bodies) behind the current one; what comes beyond is discarded, and 413 is
    the last answer."""

    linger_s: float = 10.0
    """How long input is discarded after a refusal, so that the client can read the answer: what a client
    that sends 50 MB on without looking needs on a slow link or a loaded machine. One that looks closes."""

    linger_bytes: int = 64 * 1024**2
    """How much input is discarded after a refusal at most. A client that sends more without looking meets a
    reset, and never reads the answer."""


@dataclass(frozen=True, slots=True)
class UpstreamLimits:
    """Limits of the connections to one engine."""

    connect_timeout_s: float = 5.0
    """To open a connection, TLS included."""

    first_byte_timeout_s: float = 300.0
    """From sending a request to the first byte of the answer's body."""

    idle_timeout_s: float = 120.0
    """Between two reads of an answer's body, while this side is willing to read."""

    keep_idle_s: float = 4.0
    """How long an unused connection is kept. Below the 5 s after which vLLM's HTTP server closes it."""

    max_idle: int = 256
    """Unused connections kept per engine."""

    max_header_bytes: int = 64 * 1024
    """Size of an answer's header lines together; more counts as broken."""
