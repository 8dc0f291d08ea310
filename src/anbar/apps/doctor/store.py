"""The check of a store that is a service."""

from anbar.apps.doctor.finding import Finding, fail, ok, warn
from anbar.apps.s3_store import try_s3
from anbar.apps.valkey_store import try_valkey
from anbar.config.stores import StoreConfig
from anbar.core.errors import ConfigError, StoreError


def check_bucket(store: StoreConfig, key: str) -> Finding:
    """Whether an engine could use it: opens it as an engine would, and closes it."""
    try:
        warning = try_s3(store)
    except StoreError as error:
        return fail("store", str(error), f"correct {key}, or what it names")
    if warning:
        return warn("store", warning, "start it; engines go on without it until it answers")
    assert store.s3 is not None, "it was opened"
    return ok("store", f"bucket {store.s3.bucket} can be written, read, listed and cleared")


def check_servers(store: StoreConfig, key: str) -> Finding:
    """As `check_bucket`, of a store in Valkey."""
    try:
        warning = try_valkey(store)
    except (ConfigError, StoreError) as error:
        return fail("store", str(error), f"correct {key}, or what it names")
    if warning:
        return warn("store", warning, "start it; engines go on without it until it answers")
    assert store.valkey is not None, "it was opened"
    return ok("store", f"Valkey at {', '.join(store.valkey.nodes)} answers")
