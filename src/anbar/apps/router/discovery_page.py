"""What `GET /admin/discovery` answers. The texts under the fields are its documentation."""

from collections.abc import Mapping

import msgspec

from anbar.apps.router.discovery import Discovery, Followed


class HeldPage(msgspec.Struct, frozen=True):
    """An engine that was found."""

    id: str
    """As `/admin/engines` has it."""
    url: str
    """Where it is."""
    missing_in_looks: int
    """Good looks in a row that did not name it; with `leave_after` of them it is drained."""


class EntryPage(msgspec.Struct, frozen=True):
    """An entry of the configuration with `discover`. Times are seconds since 1970; 0: never."""

    name: str
    """The entry's."""
    source: str
    """What is looked at."""
    engines: tuple[HeldPage, ...]
    """The engines that it has."""
    unused: Mapping[str, str]
    """Those that were found and are not used, and why."""
    last_look_s: float
    """When it was looked at last."""
    last_success_s: float
    """When that last told what there is."""
    failure: str
    """Why the last look failed: `missing`, `invalid`, `nxdomain`, `empty`, `timeout`, `servfail`, `defect`;
    empty when it did not."""
    error: str
    """The same in words; of a file with line and key. Beside a look that did not fail: what it could not
    tell."""
    looks_failed: Mapping[str, int]
    """How many have, by why."""
    joined: int
    """Engines that have joined since the start."""
    left: int
    """Engines that have left."""


class DiscoveryPage(msgspec.Struct, frozen=True):
    """What was found where engines are listed elsewhere."""

    entries: tuple[EntryPage, ...]
    """One for each entry with `discover`."""


def discovery_page(discovery: Discovery) -> DiscoveryPage:
    """The page as it is now."""
    return DiscoveryPage(tuple(map(_entry, discovery.followed)))


def _entry(followed: Followed) -> EntryPage:
    name = followed.entry.name
    unused = {str(engine): f"{other} has this address too" for engine, other in followed.duplicates.items()}
    unused.update({str(engine): why for engine, why in followed.refused.items()})
    for place in followed.presence.left_out:
        unused[f"{name}@{place}"] = f"beyond max_engines ({followed.discover.max_engines})"
    return EntryPage(
        name=name,
        source=followed.discover.source,
        engines=tuple(
            HeldPage(f"{name}@{place}", held.found.url, held.num_missing)
            for place, held in followed.presence.held.items()
        ),
        unused=unused,
        last_look_s=followed.last_look_s,
        last_success_s=followed.last_success_s,
        failure=followed.failure.value if followed.failure is not None else "",
        error=followed.error,
        looks_failed={failure.value: number for failure, number in followed.num_failed.items()},
        joined=followed.num_joined,
        left=followed.num_left,
    )
