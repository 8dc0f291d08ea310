"""The check of a store that is a service."""

import re
import socket
from urllib.parse import urlsplit

from anbar.apps.doctor.finding import Finding, fail, ok, warn
from anbar.apps.s3_store import try_s3
from anbar.apps.valkey_store import try_quotas, try_valkey
from anbar.config.exchange import host_and_port
from anbar.config.stores import StoreConfig
from anbar.config.tenants import TenantsConfig
from anbar.core.errors import ConfigError, StoreError

_FIX = "start it, or look why it fails; engines go on without it until it answers"
_PROBE_S = 2.0
"""For a server that has just failed to answer as it should."""
_CLIENTS_WORDS = re.compile(r"Generic S3 error: .* - ", re.DOTALL)
"""Of retries and their limits, before what failed."""


def _is_plain(address: tuple[str, int], question: bytes, answers: re.Pattern[bytes]) -> bool:
    """Whether a server answers this without TLS."""
    try:
        with socket.create_connection(address, timeout=_PROBE_S) as connection:
            connection.sendall(question)
            return answers.match(connection.recv(64)) is not None
    except OSError:
        return False


def _has_quota(tenants: TenantsConfig | None) -> bool:
    rules = () if tenants is None else (tenants.default, *tenants.scopes.values())
    return any(of.quota_bytes is not None for of in rules)


def check_bucket(store: StoreConfig, key: str) -> Finding:
    """Whether an engine could use it: opens it as an engine would, and closes it."""
    try:
        warning = try_s3(store)
    except StoreError as error:
        return fail("store", str(error), f"correct {key}, or what it names")
    assert store.s3 is not None, "it was opened"
    if warning and (endpoint := store.s3.endpoint or "").startswith("https://"):
        url = urlsplit(endpoint)
        host, question = url.hostname or "", f"GET / HTTP/1.1\r\nHost: {url.netloc}\r\n\r\n".encode()
        # Servers with TLS answer a request without it, if at all, by status 400.
        if _is_plain((host, url.port or 443), question, re.compile(rb"HTTP/\S+ (?!400)")):
            fix = f"give it TLS, or set http:// in {key}.endpoint and {key}.allow_http: true"
            return warn("store", f"{endpoint} answers without TLS, and https:// asks for it", fix)
    if warning:
        return warn("store", " ".join(_CLIENTS_WORDS.sub("", warning).split()), _FIX)
    return ok("store", f"bucket {store.s3.bucket} can be written, read, listed and cleared")


def check_servers(store: StoreConfig, key: str, tenants: TenantsConfig | None) -> Finding:
    """As `check_bucket`, of a store in Valkey; with quotas of tenants also whether they could be kept."""
    lacking = ""
    try:
        warning = try_valkey(store)
        if not warning and _has_quota(tenants):
            lacking = try_quotas(store)
    except (ConfigError, StoreError) as error:
        return fail("store", str(error), f"correct {key}, or what it names")
    assert store.valkey is not None, "it was opened"
    if warning and store.valkey.tls:
        for node in store.valkey.nodes:
            if _is_plain(host_and_port(node), b"PING\r\n", re.compile(rb"\+PONG|-NOAUTH|-DENIED")):
                fix = f"give it TLS (tls-port), or set {key}.tls: false"
                return warn("store", f"Valkey at {node} answers without TLS, and {key}.tls asks for it", fix)
    if warning:
        return warn("store", warning, _FIX)
    if lacking:
        fix = f"give the user of {key} the rights that docs/guides/store-valkey.md names for quotas"
        return warn("store", f"tenants' quotas are not kept, and almost nothing of theirs is: {lacking}", fix)
    return ok("store", f"Valkey at {', '.join(store.valkey.nodes)} answers")
