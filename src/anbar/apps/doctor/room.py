"""What can be said of directories of a store beforehand: what they hold, and whether they are apart."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from anbar.apps.doctor.finding import Finding, warn
from anbar.config.sizes import format_size
from anbar.config.tenants import TenantsConfig

SMALL_BYTES = 64 * 1024**2
"""A store with less holds a handful of chunks of a usual model."""


def check_room(
    root: Path, key: str, capacity: int | None, tenants: TenantsConfig | None
) -> Iterator[Finding]:
    """`capacity`: bytes that the store may take. `key`: of the store."""
    if root.resolve() == Path("/"):
        yield warn("store", "/ holds the whole system", f"choose another {key}.path")
    if capacity is None:
        return
    place = next(path for path in (root, *root.parents) if path.exists())
    disk = shutil.disk_usage(place)
    said = f"{root}: capacity_bytes is {format_size(capacity)}"
    fix = f"correct {key}.capacity_bytes"
    if capacity > disk.total:
        yield warn("store", f"{said}, its file system has {format_size(disk.total)} in all", fix)
    elif capacity > disk.free and not (root / "v1").exists():  # what is there already counts
        yield warn("store", f"{said}, {format_size(disk.free)} are free", f"{fix}, or free some disk")
    elif capacity < SMALL_BYTES:
        yield warn(
            "store", f"{said}: a few chunks of KV, or none", f"{fix}: {format_size(SMALL_BYTES)} at least"
        )
    if tenants is not None:
        rules = {"default": tenants.default, **{f"scopes.{name}": of for name, of in tenants.scopes.items()}}
        for name, of in rules.items():
            if of.quota_bytes is not None and of.quota_bytes > capacity:
                quota = f"tenants.{name}.quota_bytes is {format_size(of.quota_bytes)}"
                yield warn("store", f"{said}, and {quota}, which it never holds", f"lower that, or {fix}")


def check_apart(roots: Sequence[tuple[str, Path]]) -> Iterator[Finding]:
    """`roots`: keys and directories of a store's members. One within another, or the same by links, is one
    disk that counts twice."""
    for index, (key, root) in enumerate(roots):
        for other_key, other in roots[:index]:
            one, two = root.resolve(), other.resolve()
            if one.is_relative_to(two) or two.is_relative_to(one):
                what = f"{root} and {other} of {other_key} are the same place, or one is within the other"
                yield warn("store", what, f"choose another {key}")
