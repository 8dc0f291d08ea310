"""The model of `cache.store.valkey`."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from pydantic import Field

from anbar.config.exchange import PeerAddress
from anbar.config.fields import ConfigModel, EnvName, Int, NamedPath, Seconds


class ValkeyStoreConfig(ConfigModel):
    """Valkey, or Redis from 6.2 on, as the shared store."""

    nodes: Annotated[tuple[PeerAddress, ...], Field(min_length=1)]
    """The server, `host:port`. With `cluster`: one or more of the cluster's nodes; the others are found."""

    cluster: bool = False
    """Whether the nodes are of a cluster. Replicas and failover are the cluster's own."""

    db: Annotated[Int, Field(ge=0, le=65535)] = 0
    """Number of the database. 0 with `cluster`."""

    ttl_s: Annotated[Int, Field(ge=1, le=10 * 365 * 86_400)] | None = 86_400
    """Seconds until an entry that nobody reads or stores again ends. null: never; then the server's
    `maxmemory-policy` must be allkeys-…, or it would fill up and refuse for ever."""

    username: Annotated[str, Field(min_length=1)] | None = None
    """Name of the server's user. null: `default`, if there is a password."""

    password_env: EnvName | None = None
    """Environment variable that holds the password."""

    password_file: NamedPath | None = None
    """File whose content is the password; read again for each connection. Not together with
    `password_env`."""

    tls: bool = False
    """Whether connections are encrypted and the server's certificate is verified."""

    ca_file: NamedPath | None = None
    """Certificates, in PEM, of who may vouch for the servers. null: whom the system trusts."""

    cert_file: NamedPath | None = None
    """Certificate that this client shows, in PEM; together with `key_file`. null: none."""

    key_file: NamedPath | None = None
    """Private key of `cert_file`, in PEM."""

    verify_host: bool = True
    """Whether a certificate must name the host that is connected to. false for clusters whose nodes call
    themselves by addresses that their certificates do not hold; `ca_file` is then what protects."""

    connect_timeout_s: Seconds = 1.0
    """Longest wait for a connection, and for each answer while logging in."""


def files_of_valkey(valkey: ValkeyStoreConfig, place: Callable[[Path], Path]) -> ValkeyStoreConfig:
    """The same with the path of every file put through `place`."""
    keys = ("password_file", "ca_file", "cert_file", "key_file")
    said = {key: path for key in keys if (path := getattr(valkey, key)) is not None}
    return valkey.model_copy(update={key: place(path) for key, path in said.items()})
