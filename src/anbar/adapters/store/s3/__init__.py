"""A bucket of S3 as a store."""

from anbar.adapters.store.s3.client import Place
from anbar.adapters.store.s3.store import S3Store, S3StoreConfig

__all__ = ["Place", "S3Store", "S3StoreConfig"]
