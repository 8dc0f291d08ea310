"""The client of one bucket, and what its failures mean.

Requests are retried by the client itself: 5xx answers, refused and broken connections, and stalled reads,
with exponential backoff and jitter (`object_store`'s), for as long as the call on the store lasts.
"""

import configparser
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from obstore.exceptions import BaseError
from obstore.store import S3Store as Client

from anbar.core.errors import StoreError
from anbar.tier.store import Outcome

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig, S3Credential
    from obstore.store import S3Config as ClientSettings

S3_ERRORS = (BaseError, OSError, ValueError)
"""What the client raises: its own errors, FileNotFoundError for what is not there, ValueError."""

_REREAD_AFTER = timedelta(minutes=5)
"""How long credentials from a file are used before the file is read again, so that they can be rotated."""
_FIRST_BACKOFF = timedelta(milliseconds=50)
_MAX_BACKOFF = timedelta(seconds=1)
_MAX_RETRIES = 6
"""With growing pauses: one to two seconds in all."""
_FULL_STATUS = 507
_NO_SUCH_RANGE = 416
"""The object ends before a part that it should have."""
_FULL_CODES = frozenset(
    {"QuotaExceeded", "InsufficientCapacity", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded"}
)
_GIVE_CREDENTIALS = "name a file by s3.credentials_file, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
_STATUS = re.compile(r"non-2xx status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>|\(code: (\w+)\)")
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a bucket is, and how it is asked."""

    bucket: str
    prefix: str
    """What all names begin with; without a slash at the end."""
    endpoint: str | None = None
    """None: AWS."""
    region: str = "us-east-1"
    credentials_file: Path | None = None
    """None: what the environment offers (see `obstore.store.S3Config`)."""
    profile: str = "default"
    ca_file: Path | None = None
    virtual_hosted: bool = False
    allow_http: bool = False

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix} at {self.endpoint or f'AWS ({self.region})'}"


def connect(place: Place, *, attempt_s: float, retry_s: float) -> Client:
    """A client, no request of which lasts longer than `attempt_s`, nor is repeated after `retry_s`. Connects
    to nothing yet. Raises StoreError for a file that cannot be read."""
    settings: ClientSettings = {
        "region": place.region,
        "virtual_hosted_style_request": place.virtual_hosted,
        # The record's checksum covers the payload, and TLS the way to the server; hashing it once more for
        # the signature would cost as much CPU as all the rest.
        "unsigned_payload": True,
    }
    if place.endpoint is not None:
        settings["endpoint"] = _endpoint(place.endpoint, place.bucket if place.virtual_hosted else None)
    options: ClientConfig = {
        "allow_http": place.allow_http,
        "connect_timeout": timedelta(seconds=attempt_s / 2),
        "timeout": timedelta(seconds=attempt_s),
    }
    if place.ca_file is not None:
        options["root_certificate"] = _read(place.ca_file)
    retry: RetryConfig = {
        "max_retries": _MAX_RETRIES,
        "backoff": {"init_backoff": _FIRST_BACKOFF, "max_backoff": _MAX_BACKOFF, "base": 2},
        "retry_timeout": timedelta(seconds=retry_s),
    }
    try:
        return Client(
            place.bucket,
            config=settings,
            client_options=options,
            retry_config=retry,
            credential_provider=None if place.credentials_file is None else _Credentials(place),
        )
    except S3_ERRORS as error:
        raise StoreError(f"store {place} cannot be used: {_first_line(error)}") from None


def outcome_of(error: Exception) -> Outcome:
    """What a failed request means for its key."""
    code, text = code_of(error), str(error)
    found = _STATUS.search(text)
    status = int(found[1]) if found is not None else None
    if code in _FULL_CODES or status == _FULL_STATUS:
        return Outcome.FULL
    if status == _NO_SUCH_RANGE:
        return Outcome.CORRUPT
    if isinstance(error, FileNotFoundError) and code != "NoSuchBucket":
        return Outcome.MISS
    return Outcome.TIMEOUT if status is None and "TimedOut" in text else Outcome.ERROR


def code_of(error: Exception) -> str | None:
    """S3's own word for the failure, such as SlowDown; None when there is none, as in answers to HEAD."""
    found = _CODE.search(str(error))
    return None if found is None else found[1] or found[2]


def complaint(error: Exception, place: Place) -> str | None:
    """Why a store cannot be used at all, in words for its user; None for what may pass by itself: a server
    that cannot be reached, is overloaded or late."""
    code, text = code_of(error), str(error)
    status = _STATUS.search(text)
    number = int(status[1]) if status is not None else 0
    if isinstance(error, StoreError):
        return text
    if "169.254.169.254" in text or "169.254.170.2" in text:
        return f"there are no credentials: {_GIVE_CREDENTIALS}"
    if code == "NoSuchBucket":
        return f"the bucket {place.bucket} does not exist there"
    if "certificate" in text.lower():
        return "its certificate is not trusted: s3.ca_file names the authority's (PEM)"
    if code == "AccessDenied":
        return (
            "access is denied: these credentials need to put, get, list and delete objects below the prefix"
        )
    if 300 <= number < 500 and number not in (408, 429):
        said = _MESSAGE.search(text)
        return f"it answers {number}{f' {code}' if code else ''}{f': {said[1]}' if said else ''}"
    return None


def why(error: Exception) -> str:
    """The failure in a line, for a warning. No secret is in it: the client tells neither headers nor
    credentials."""
    code = code_of(error)
    causes = [part for part in ("Connection refused", "dns error", "TimedOut") if part in str(error)]
    return code or (causes[0] if causes else _first_line(error))


class _Credentials:
    """Reads `credentials_file` whenever the client's credentials are due."""

    def __init__(self, place: Place) -> None:
        assert place.credentials_file is not None, "there is a file to read"
        self._file = place.credentials_file
        self._profile = place.profile
        self()

    def __call__(self) -> "S3Credential":
        parser = configparser.ConfigParser(interpolation=None)
        try:
            parser.read_string(_read(self._file))
            section = parser[self._profile]
            key, secret = section["aws_access_key_id"], section["aws_secret_access_key"]
        except KeyError as error:
            raise StoreError(f"credentials file {self._file} has no {error} ([{self._profile}])") from None
        except configparser.Error:
            raise StoreError(
                f"credentials file {self._file} is not of the form of ~/.aws/credentials"
            ) from None
        return {
            "access_key_id": key,
            "secret_access_key": secret,
            "token": section.get("aws_session_token"),
            "expires_at": datetime.now(UTC) + _REREAD_AFTER,
        }


def _endpoint(endpoint: str, bucket: str | None) -> str:
    """The client wants the bucket in the address already when it stands in the host's name."""
    if bucket is None:
        return endpoint
    parts = urlsplit(endpoint)
    return parts._replace(netloc=f"{bucket}.{parts.netloc}").geturl()


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise StoreError(f"file {path} cannot be read: {reason}") from None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:300]
