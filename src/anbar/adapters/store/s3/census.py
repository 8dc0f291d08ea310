"""Lists what a bucket holds of scopes, and evicts some of it.

A request lists a thousand objects, with their sizes and ages. Where only scopes that are known by name have
quotas, only theirs are listed. How often is for the ledger to say, which looks seldom: listing costs money.
"""

import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from anbar.adapters.store.layout import Layout, scope_of
from anbar.adapters.store.ledger import Seen
from anbar.adapters.store.requests import RequestLoop, Work
from anbar.adapters.store.s3.client import S3_ERRORS, why
from anbar.adapters.store.s3.objects import Objects
from anbar.core.errors import StoreError

if TYPE_CHECKING:
    from obstore import ObjectMeta

T = TypeVar("T")

_NAMES_PER_REMOVAL = 1000
"""What a server deletes in one request."""


class Census:
    """See `ledger.Listing`. Requests are the store's own loop's, and end when that is closed;
    `removed` is told what was evicted."""

    def __init__(
        self,
        layout: Layout,
        objects: Objects,
        loop: RequestLoop,
        timeout_s: float,
        removed: Callable[[Iterable[str]], None],
    ) -> None:
        self._layout = layout
        self._removed = removed
        self._objects = objects
        self._loop = loop
        self._timeout_s = timeout_s

    def entries(self, scopes: Collection[str] | None) -> Iterator[Seen[str]]:
        for prefix in self._prefixes(scopes):
            pages = self._objects.pages(prefix)
            while (page := self._ask(lambda pages=pages: _next(pages))) is not None:  # type: ignore[misc]
                for meta in page:
                    if scope := scope_of(meta["path"]):
                        age = -meta["last_modified"].timestamp()
                        yield Seen(meta["path"], scope, meta["size"], age)

    def remove(self, names: Sequence[str]) -> Iterator[tuple[str, bool]]:
        for start in range(0, len(names), _NAMES_PER_REMOVAL):
            some = names[start : start + _NAMES_PER_REMOVAL]
            self._ask(lambda some=some: self._objects.delete_all(some))  # type: ignore[misc]
            self._removed(some)
            yield from ((name, True) for name in some)

    def _prefixes(self, scopes: Collection[str] | None) -> list[str]:
        root = str(self._layout.version_dir)
        if scopes is None:
            return [root]
        namespaces = self._ask(lambda: self._objects.directories(root))
        return [f"{namespace}/{scope}" for namespace in namespaces for scope in sorted(scopes)]

    def _ask(self, work: Work[T]) -> T:
        """One request's result. Raises StoreError."""

        async def run() -> tuple[T | None, Exception | None]:
            try:
                return await work(), None
            except S3_ERRORS as error:
                return None, error

        for _, (result, error) in self._loop.run([run], time.monotonic() + self._timeout_s):
            if error is not None:
                raise StoreError(why(error)) from error
            return result  # type: ignore[return-value]
        raise StoreError(f"no answer within {self._timeout_s:g} s")


async def _next(pages: "AsyncIterator[Sequence[ObjectMeta]]") -> "Sequence[ObjectMeta] | None":
    return await anext(pages, None)
