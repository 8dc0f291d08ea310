"""Kinds of values in `anbar.yaml`, each with the words that it is refused with."""

import re
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from anbar.config.sizes import parse_size

Bytes = Annotated[int, BeforeValidator(parse_size), Field(ge=0)]
"""A size: an integer number of bytes, or text such as `2GiB`."""

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9._-]{0,46}[a-z0-9])?$")]
"""Safe in a header, a file name, a metric label and a /dev/shm name: 1 to 48 of a-z 0-9 . _ - beginning and
ending with a letter or digit."""

Int = Annotated[int, Field(strict=True)]
"""A whole number, not text that looks like one and not true or false."""

Port = Annotated[Int, Field(ge=1, le=65535)]
Seconds = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(strict=True, ge=0, le=1)]
EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


_HTTP_URL = re.compile(r"https?://[^/?#\s]+(/[^?#\s]*)?")
_ZMQ_URL = re.compile(r"tcp://[^/\s]+:\d+|ipc:///\S+")


def _http_form(url: str) -> str:
    if _HTTP_URL.fullmatch(url) is None:
        raise ValueError("allowed: http:// or https:// with a host, such as http://10.0.0.5:8000")
    return url


def _without_v1(url: str) -> str:
    base = url.rstrip("/").removesuffix("/v1")
    if base != url.rstrip("/"):
        raise ValueError(f"allowed: the base address, without /v1: {base}")
    return url


def for_engine(template: str, host: str, port: int) -> str:
    """An address with the engine's host and port put in."""
    return template.replace("{host}", host).replace("{port}", str(port))


def _zmq_form(url: str) -> str:
    if _ZMQ_URL.fullmatch(for_engine(url, "h", 1)) is None:
        raise ValueError("allowed: tcp://, a host and a port, such as tcp://10.0.0.5:5557, or ipc:///a/path")
    return url


def _with_port(url: str) -> str:
    """Refuses what has the look of an address and is none."""
    if url.startswith("ipc:"):
        return url
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"allowed: host and port, the port from 1 to 65535 ({error})") from error
    if not parts.hostname or port == 0:
        raise ValueError("allowed: host and port, the port from 1 to 65535")
    return url


_LOGINS = "api_key_env or api_key_file for an engine, credentials_file for a bucket"


def _without_user(url: str) -> str:
    if "@" in urlsplit(url).netloc:
        raise ValueError(f"no user or password may stand in it: use {_LOGINS}")
    return url


HttpUrl = Annotated[
    str,
    AfterValidator(_http_form),
    AfterValidator(_with_port),
    AfterValidator(_without_user),
    AfterValidator(_without_v1),
]


def _with_zmq_port(url: str) -> str:
    _with_port(for_engine(url, "h", 1))
    return url


ZmqUrl = Annotated[str, AfterValidator(_zmq_form), AfterValidator(_with_zmq_port)]
"""May hold `{host}` and `{port}`."""


_HOST_NAME = re.compile(r"(\w([\w-]*\w)?\.)*(?!\d+\.?$)\w([\w-]*\w)?\.?", re.ASCII)
"""The last label is no number, so that an address with a slip is no name (RFC 1123, 2.1)."""


def _host(value: str) -> str:
    try:
        ip_address(value)
    except ValueError as error:
        if len(value) > 253 or _HOST_NAME.fullmatch(value) is None:
            raise ValueError(
                "allowed: an address or a name, without port or brackets, such as 0.0.0.0, :: or localhost"
            ) from error
    return value


ListenHost = Annotated[str, AfterValidator(_host)]


def _not_empty(value: object) -> object:
    """An empty path would mean the directory that the command happens to run in."""
    if value == "":
        raise ValueError("allowed: not empty")
    return value


NamedPath = Annotated[Path, BeforeValidator(_not_empty)]


class ConfigModel(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True
    )
