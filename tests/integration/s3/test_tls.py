"""A server whose certificate an authority of one's own has signed."""

from dataclasses import replace

import pytest

from anbar.adapters.store.s3 import S3Store, S3StoreConfig
from anbar.core.errors import StoreError
from anbar.testing.store_contract import KEY, VALUE, get, put
from anbar.tier.store import Outcome
from tests.s3_server import S3Server
from tests.tls_front import CA, TlsFront


def test_an_authority_of_ones_own(s3: S3Server, config: S3StoreConfig) -> None:
    """`ca_file` names it: values go to and fro over TLS. Without it nobody vouches for the server, and the
    store is refused in words that name what to set."""
    front = TlsFront(s3.port)
    place = replace(config.place, endpoint=f"https://localhost:{front.port}", allow_http=False)
    stranger = S3Store(replace(config, place=place), b"model")
    with pytest.raises(StoreError, match=r"certificate is not trusted: s3\.ca_file"):
        stranger.open()
    stranger.close()
    store = S3Store(replace(config, place=replace(place, ca_file=CA)), b"model")
    assert store.open() == ""
    assert put(store, KEY, VALUE) is Outcome.HIT
    assert get(store, KEY, len(VALUE)) == (Outcome.HIT, VALUE)
    store.close()
    front.close()
