"""The section `cache.store.s3`: a bucket of S3 or of what speaks its protocol."""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import Field, StringConstraints

from anbar.config.fields import Bytes, ConfigModel, HttpUrl, Int, NamedPath, Seconds

_MIN_PART_BYTES = 5 * 1024**2
"""S3 takes no smaller parts of an upload, but for the last."""

Bucket = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]$")]
Prefix = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*$")
]


class Addressing(StrEnum):
    """Where the bucket's name stands in a request."""

    PATH = "path"
    VIRTUAL = "virtual"


class Collector(StrEnum):
    """Who removes entries older than `ttl_s`."""

    ENGINES = "engines"
    BUCKET = "bucket"


class S3Config(ConfigModel):
    """A bucket of AWS S3, Ceph RGW, MinIO, SeaweedFS or another server of that protocol."""

    bucket: Bucket
    """Name of the bucket. It must exist: an engine stops at its start when it does not."""

    prefix: Prefix = "anbar"
    """What the names of all objects begin with, without a slash at the end."""

    endpoint: HttpUrl | None = None
    """Address of the server, without the bucket. null: that of AWS for the region."""

    region: Annotated[str, StringConstraints(pattern=r"^[a-z0-9-]+$")] = "us-east-1"
    """Region that requests are signed for. Servers other than AWS mostly take any."""

    credentials_file: NamedPath | None = None
    """File in the form of `~/.aws/credentials`, read again when it changes. null: the environment
    (AWS_ACCESS_KEY_ID and so on), a web identity, or the credentials of the container or the machine."""

    profile: Annotated[str, StringConstraints(min_length=1)] = "default"
    """Section of `credentials_file`."""

    ca_file: NamedPath | None = None
    """Certificates (PEM) that the server's may be signed by, besides those of the system."""

    addressing: Addressing = Addressing.PATH
    """path: https://host/bucket/name. virtual: https://bucket.host/name."""

    allow_http: bool = False
    """Whether `endpoint` may be without TLS. Whoever can read that network reads prompts."""

    concurrency: Annotated[Int, Field(ge=1, le=256)] = 16
    """Requests at a time of one call on the store, of which an engine makes up to six at a time. An upload in
    parts sends four of them at a time."""

    part_bytes: Annotated[Bytes, Field(ge=_MIN_PART_BYTES)] = 16 * 1024**2
    """A larger value is written in parts and read in ranges of this size, several at a time."""

    ttl_s: Seconds | None = 7 * 86400.0
    """Age at which an entry counts as missing and is removed; being read does not renew it. null: never, and
    the bucket grows."""

    collect: Collector = Collector.ENGINES
    """Who removes what is older than `ttl_s`. engines: each engine, which lists the prefix from time to time.
    bucket: a lifecycle rule that you have given the bucket."""

    @property
    def identity(self) -> str:
        """The place, as every machine that shares it has it."""
        return f"{self.endpoint or 'aws'} {self.bucket} {self.prefix}"

    def with_files(self, link: Callable[[Path], Path]) -> "S3Config":
        """The same with the names of files put through `link`."""
        files = {"credentials_file": self.credentials_file, "ca_file": self.ca_file}
        return self.model_copy(update={key: link(file) for key, file in files.items() if file is not None})
