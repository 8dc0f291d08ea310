"""Choices that every router makes alike without talking to another: by hashes of names alone."""

import xxhash

_SPAN = 2**64


def weight(key: str, name: str) -> int:
    """How much `key` wants `name`: the one with the greatest weight gets it (rendezvous hashing: Thaler and
    Ravishankar, 1998). When a name goes, only its keys move; when one comes, it takes an even share of
    all."""
    return xxhash.xxh3_64_intdigest(f"{key}\0{name}".encode())


def lot(key: str) -> float:
    """A number in [0, 1) that `key` always draws; evenly spread over different keys."""
    return xxhash.xxh3_64_intdigest(f"lot\0{key}".encode()) / _SPAN
