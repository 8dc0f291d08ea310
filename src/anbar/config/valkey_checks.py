"""What must agree between the values of `valkey` of a store. Pure; paths begin below it."""

from collections.abc import Iterator

from anbar.config.problems import Problem
from anbar.config.valkey import ValkeyStoreConfig


def check_valkey(valkey: ValkeyStoreConfig) -> Iterator[Problem]:
    """All problems between its values."""
    if not valkey.cluster and len(valkey.nodes) > 1:
        yield Problem(("nodes",), f"are {len(valkey.nodes)}; allowed without `cluster: true`: one")
    if valkey.cluster and valkey.db:
        yield Problem(("db",), f"is {valkey.db}; allowed with `cluster: true`: 0")
    has_password = valkey.password_env is not None or valkey.password_file is not None
    if valkey.password_env is not None and valkey.password_file is not None:
        yield Problem(("password_file",), "cannot stand beside `password_env`: keep one")
    if valkey.username is not None and not has_password:
        yield Problem(("username",), "needs `password_env` or `password_file`")
    for key in ("ca_file", "cert_file", "key_file"):
        if getattr(valkey, key) is not None and not valkey.tls:
            yield Problem((key,), "needs `tls: true`")
    if (valkey.cert_file is None) != (valkey.key_file is None):
        missing = "key_file" if valkey.key_file is None else "cert_file"
        yield Problem((missing,), "is missing: `cert_file` and `key_file` go together")
