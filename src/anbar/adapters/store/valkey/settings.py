"""What a server tells of itself, and whether it is fit to hold the shared tier."""

from collections.abc import Iterator, Mapping

from anbar.adapters.store.valkey.replies import Reply

MIN_VERSION = (6, 2)
"""GETEX came with it."""
_ADVICE = "set `maxmemory-policy allkeys-lru` (or volatile-lru, where others use the server too)"

EVENTS = "Exeg"
"""Keyevent messages of keys that expired, were evicted, or were removed by a command."""

Info = Mapping[str, str]


def read_info(reply: Reply) -> Info:
    """The reply to INFO as keys and values; empty for anything else."""
    if not isinstance(reply, bytes):
        return {}
    lines = (line.partition(":") for line in reply.decode("utf-8", "replace").splitlines())
    return {key: value for key, colon, value in lines if colon}


def number(info: Info, key: str) -> int | None:
    """A value that is a number, if it is there and is one."""
    text = info.get(key, "")
    return int(text) if text.isdigit() else None


def errors(info: Info, *, is_cluster: bool, has_ttl: bool) -> Iterator[str]:
    """Why a server cannot be used with these settings. What it does not tell is taken to be fine."""
    version = info.get("valkey_version") or info.get("redis_version")
    if version is not None and _version(version) < MIN_VERSION:
        yield f"it is version {version}; needed: Valkey, or Redis from 6.2 on"
    mode = info.get("cluster_enabled")
    if mode == "1" and not is_cluster:
        yield "it is part of a cluster: set cache.store.valkey.cluster to true"
    if mode == "0" and is_cluster:
        yield "it is not part of a cluster: set cache.store.valkey.cluster to false"
    policy = info.get("maxmemory_policy", "")
    if policy == "noeviction" and not has_ttl:
        yield (
            "its maxmemory-policy is noeviction and cache.store.valkey.ttl_s is null, so nothing would ever "
            f"go: {_ADVICE}"
        )
    if policy.startswith("volatile-") and not has_ttl:
        yield (
            f"its maxmemory-policy {policy} evicts only what has a time to live: set "
            "cache.store.valkey.ttl_s, or maxmemory-policy allkeys-lru"
        )


def warnings(info: Info) -> Iterator[str]:
    """What will work, and not for long or not well."""
    if number(info, "maxmemory") == 0:
        yield "it has no maxmemory, so it grows until its machine's memory is spent: set maxmemory"
    elif info.get("maxmemory_policy") == "noeviction":
        yield (
            "its maxmemory-policy is noeviction: once full it refuses what is to be stored until entries "
            f"expire; {_ADVICE}"
        )
    if info.get("role") == "slave":
        yield "it is a replica, which refuses what is to be stored: name the primary"


def silence(reply: Reply) -> str | None:
    """What a server does not tell of its own accord, from its reply to CONFIG GET notify-keyspace-events;
    None: nothing, or it does not say (who may ask is the server's to decide)."""
    match reply:
        case [b"notify-keyspace-events", bytes(flags)]:
            said = flags.decode("ascii", "replace").replace("A", "g$lshzxet")
            missing = "".join(flag for flag in EVENTS if flag not in said)
            if missing:
                return (
                    f"its notify-keyspace-events lack {missing}: what it evicts or lets expire is taken to "
                    f"be there until somebody asks for it; set notify-keyspace-events {EVENTS}"
                )
    return None


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if part.isdigit())
