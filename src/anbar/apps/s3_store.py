"""Opens the bucket that `cache.store.s3` names."""

import logging
from dataclasses import replace

from anbar.adapters.store.s3 import Place, S3Store, S3StoreConfig
from anbar.config.s3 import Addressing, Collector
from anbar.config.stores import StoreConfig
from anbar.tier.scopes import NO_SCOPES, Scopes

logger = logging.getLogger(__name__)


def open_s3(config: StoreConfig, id: str, namespace: bytes, scopes: Scopes = NO_SCOPES) -> S3Store:
    """The store, open, also when its server cannot be reached now: then a warning is logged. Raises
    StoreError when it could not be used."""
    store = S3Store(replace(s3_config(config, id), scopes=scopes), namespace)
    if warning := store.open():
        logger.warning("%s; it is asked again when it is needed", warning)
    return store


def try_s3(config: StoreConfig) -> str:
    """Open and close it: the warning, or "" when all is well. Raises StoreError when it could not be used."""
    store = S3Store(s3_config(config, "trial"), b"")
    try:
        return store.open()
    finally:
        store.close()


def s3_config(config: StoreConfig, id: str) -> S3StoreConfig:
    """The bucket that `config` describes, as its store takes it."""
    section = config.s3
    assert section is not None, "check_store sees to it"
    place = Place(
        bucket=section.bucket,
        prefix=section.prefix,
        endpoint=section.endpoint,
        region=section.region,
        credentials_file=section.credentials_file,
        profile=section.profile,
        ca_file=section.ca_file,
        virtual_hosted=section.addressing is Addressing.VIRTUAL,
        allow_http=section.allow_http,
    )
    return S3StoreConfig(
        place,
        id,
        timeout_s=config.timeout_s,
        concurrency=section.concurrency,
        part_bytes=section.part_bytes,
        ttl_s=section.ttl_s,
        sweep=section.collect is Collector.ENGINES,
    )
