"""The guide to the sizes of tiers: it works out what the product works out, and its file opens a store."""

import json
import re
from pathlib import Path

import pytest

from anbar.apps.emulator.default_cost import H100_8B, KV_BYTES_PER_TOKEN
from anbar.apps.stores import open_store
from anbar.config.load import load
from anbar.config.store_checks import read_store
from anbar.config.stores import store_settings
from anbar.testing.store_contract import KEY, VALUE, get, put
from anbar.tier.store import Outcome
from tests.e2e.guide import REPO, Following, follow

GUIDE = REPO / "docs/guides/size-the-tiers.md"


def test_its_programs_print_what_it_says(tmp_path: Path) -> None:
    """Both blocks of Python, as a reader would run them."""
    assert follow(GUIDE, tmp_path, Following({}, {}, 300)) == 2


def test_its_file_opens_a_store(tmp_path: Path) -> None:
    """As it stands there, but in a directory of the test; what was stored is found, within the bounds that
    the file sets, and more host RAM is asked for than the text gives the device."""
    (text,) = re.findall(r"^```yaml\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    path = tmp_path / "anbar.yaml"
    path.write_text(text.replace("/dev/shm", str(tmp_path)))
    config = load(path, environ={}).config
    store = open_store(read_store(store_settings(config.cache.store, tmp_path)), b"model")
    assert put(store, KEY, VALUE) is Outcome.HIT
    assert get(store, KEY, len(VALUE)) == (Outcome.HIT, VALUE)
    assert store.stats().capacity_bytes == 96 * 2**30
    store.close()
    assert config.cache.host_bytes > 393_216 * KV_BYTES_PER_TOKEN
    chunk_bytes = config.cache.chunk_blocks * 16 * KV_BYTES_PER_TOKEN
    assert chunk_bytes == 4 * 2**20


def test_its_cost_of_computing_is_the_emulators() -> None:
    """The a and b of the second block."""
    text = GUIDE.read_text()
    (a, b) = re.findall(r"^a, b = (\S+), (\S+)  #", text, re.MULTILINE)[0]
    assert float(b) == H100_8B.prefill_s_per_token2
    assert float(a) == pytest.approx(H100_8B.tokens.s_per_token, rel=0.02)


def test_its_cycle_is_a_cliff() -> None:
    """50 documents of 10,000 tokens of 327,680 bytes, in order, against least recently used: no hit in
    150 GB, nothing but hits in 164 GB once all were there."""
    document = 10_000 * 327_680
    assert 50 * document == 163_840_000_000
    for capacity, expected in ((150e9, 0), (164e9, 50)):
        held: dict[int, None] = {}
        hits = 0
        for turn in range(3):
            for number in range(50):
                hits += turn == 2 and number in held
                held.pop(number, None)
                held[number] = None
                while len(held) * document > capacity:
                    del held[next(iter(held))]
        assert hits == expected


def test_its_ratios_are_those_measured() -> None:
    """The table of stores beside bare loops is the recorded result."""
    ratios = json.loads((REPO / "benchmarks/results/tier-transfer.json").read_text())["ratios"]
    sizes = ("64", "256", "1,024", "4,096")
    names = list(dict.fromkeys(name.rpartition(", ")[0] for name in ratios))
    expected = [[f"{ratios[f'{name}, {size} KiB']:.2f}" for size in sizes] for name in names]
    rows = re.findall(r"^\| (?:files|Valkey|S3)[^|]* \| ([\d. |]+) \|$", GUIDE.read_text(), re.MULTILINE)
    assert [row.split(" | ") for row in rows] == expected
