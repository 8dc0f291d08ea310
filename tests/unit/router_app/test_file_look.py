"""When a file that lists engines is read, and what holds when it cannot be."""

import os
from pathlib import Path

import pytest

from anbar.apps.looks import FileLook
from anbar.config.discover import Scheme
from anbar.core.errors import LookFailed
from anbar.core.look import LookFailure


class Listing:
    """A file and who looks at it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.told = ""
        """Why the last look that failed did."""
        self._look = FileLook(path, Scheme.HTTP, 1.0)

    def replace(self, text: str) -> None:
        """By another file, as a careful writer does."""
        new = self.path.with_suffix(".new")
        new.write_text(text)
        new.rename(self.path)

    async def looks(self, number: int = 1) -> list[str]:
        """What is listed at the last of some looks: the engines' ports, or why none."""
        for _ in range(number - 1):
            await self._look_once()
        return await self._look_once()

    async def _look_once(self) -> list[str]:
        try:
            sighting = await self._look.look()
        except LookFailed as error:
            self.told = str(error)
            return [error.failure.value]
        assert (sighting.untold, sighting.again_s) == ("", 1.0)
        return [found.url.removeprefix("http://h:") for found in sighting.engines]


@pytest.fixture
def listing(tmp_path: Path) -> Listing:
    return Listing(tmp_path / "engines.yaml")


async def test_a_file_that_is_replaced(listing: Listing) -> None:
    """It is read at the first look, and again once it has changed and rests."""
    assert await listing.looks() == [LookFailure.MISSING.value]
    assert listing.told == f"{listing.path}: there is no such file"
    listing.replace("[h:1]")
    assert await listing.looks() == ["1"]
    listing.replace("[h:1, h:2]")
    assert await listing.looks() == ["1"]
    assert await listing.looks() == ["1", "2"]


async def test_a_file_that_is_written_while_it_is_looked_at(listing: Listing) -> None:
    """It is cut and grows from look to look: what was read before holds until it is whole."""
    listing.replace("- h:1\n- h:2\n")
    assert await listing.looks() == ["1", "2"]
    with listing.path.open("w") as file:
        for part in ("", "- h:1\n", "- h:22", "\n- h:3\n"):
            file.write(part)
            file.flush()
            assert await listing.looks() == ["1", "2"]
    assert await listing.looks() == ["1", "22", "3"]


async def test_a_write_that_ends_in_the_middle(listing: Listing) -> None:
    """Half a JSON list rests: refused at each look, until the whole one is there."""
    listing.replace('["h:1"]')
    await listing.looks()
    listing.path.write_text('["h:1", "h:')
    assert await listing.looks(2) == [LookFailure.INVALID.value]
    assert listing.told.startswith(f"{listing.path}:1: not valid YAML: ")
    assert await listing.looks() == [LookFailure.INVALID.value]
    listing.path.write_text('["h:1", "h:2"]')
    assert await listing.looks(2) == ["1", "2"]


async def test_a_file_that_is_away_for_a_while(listing: Listing) -> None:
    """Missing, and back as it was: there is no need to read it."""
    listing.replace("[h:1]")
    await listing.looks()
    kept = listing.path.rename(listing.path.with_suffix(".kept"))
    assert await listing.looks() == [LookFailure.MISSING.value]
    kept.rename(listing.path)
    assert await listing.looks() == ["1"]


async def test_a_configmap(tmp_path: Path) -> None:
    """Kubernetes links the file into a directory whose own link, `..data`, it turns to another one."""
    for number in (1, 2):
        (tmp_path / f"..{number}").mkdir()
        (tmp_path / f"..{number}/engines.yaml").write_text(f"[h:{number}]")
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "engines.yaml").symlink_to("..data/engines.yaml")
    listing = Listing(tmp_path / "engines.yaml")
    assert await listing.looks() == ["1"]
    (tmp_path / "..data_tmp").symlink_to("..2")
    os.replace(tmp_path / "..data_tmp", tmp_path / "..data")
    assert await listing.looks(2) == ["2"]
