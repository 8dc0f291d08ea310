"""The files that apply a verdict, and the page that shows it."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from anbar.apps.advise.deployment import DeploymentSpec, StoreSpec
from anbar.apps.advise.html import verdict_as_html
from anbar.apps.advise.verdict_text import verdict_as_text
from anbar.apps.advise.write import write_verdict
from anbar.config.load import load
from anbar.config.models import CacheMode
from anbar.config.stores import StoreKind
from anbar.core.errors import ConfigError
from anbar.plan.answer import Figure
from anbar.plan.capacities import Capacity
from anbar.plan.media import MEDIA
from anbar.plan.reasons import Choice, Kind, Reason
from anbar.plan.verdict import Change, CurvePoint, Verdict
from anbar.plan.verdict_figures import Tenant

VERDICT = Verdict(
    choice=Choice.SHARED,
    reasons=(Reason(Kind.STORE_PAYS, "it <pays>"),),
    figures=(Figure("hits", 0.5, "share", "1 / 2"),),
    estimates=(),
    capacities=(
        Capacity("the GPUs", 1.5e9, 0.2, None),
        Capacity("", 1.8e9, 0.2, None),
        Capacity("all that came again", 2e9, 0.5, None),
    ),
    curve=(CurvePoint(10.0, 1e9, 0.2), CurvePoint(20.0, 2e9, 0.5)),
    tenants=(Tenant("a&b", 3, 1000, 2.0),),
    host_bytes=64 * 10**9,
    confidence="medium",
    doubts=("the log is short",),
    changes=(Change("a pool twice as large", Choice.NEITHER, Kind.FITS_DEVICE),),
    lmcache="",
    warnings=("look out",),
    missing=("--ram",),
    assumptions=("LRU",),
)


def spec(**fields: Any) -> DeploymentSpec:
    return DeploymentSpec(model="meta-llama/Llama-3.1-8B", gpu="H100", **fields)


@pytest.mark.parametrize("medium", [name for name in MEDIA if not name.startswith("host-")])
def test_a_shared_cache_on_any_medium_is_a_configuration(tmp_path: Path, medium: str) -> None:
    """The project's own check passes, and Helm values hold the same."""
    asked = spec(engines=2, store=StoreSpec(medium=medium, capacity=10**12), slo_ttft_s=2.0, kv_dtype="fp8")
    write_verdict(tmp_path / "new", VERDICT, asked)
    config = load(tmp_path / "new/anbar.yaml").config
    assert (config.cache.mode, config.cache.host_bytes) == (CacheMode.SHARED, 64 * 10**9)
    assert config.cache.chunk_blocks == 16
    kind = {"valkey": StoreKind.VALKEY, "ceph": StoreKind.S3}.get(
        medium.split("-", maxsplit=1)[0], StoreKind.FILES
    )
    assert config.cache.store.kind is kind
    assert config.engines[0].launch is not None
    assert config.engines[0].launch.args == ("--kv-cache-dtype", "fp8")
    values = yaml.safe_load((tmp_path / "new/values.yaml").read_text())
    assert values == {"anbar": yaml.safe_load((tmp_path / "new/anbar.yaml").read_text())}


@pytest.mark.parametrize(
    ("choice", "lmcache", "mode"),
    [
        (Choice.NEITHER, "", CacheMode.NONE),
        (Choice.NATIVE, "", CacheMode.NATIVE),
        (Choice.SHARED, "it runs already", CacheMode.LMCACHE),
    ],
)
def test_each_verdict_is_a_mode(tmp_path: Path, choice: Choice, lmcache: str, mode: CacheMode) -> None:
    """Of the cache."""
    verdict = msgspec.structs.replace(VERDICT, choice=choice, lmcache=lmcache)
    write_verdict(tmp_path, verdict, spec(store=StoreSpec(medium="valkey-25gbe")))
    assert load(tmp_path / "anbar.yaml").config.cache.mode is mode


def test_what_is_there_is_not_overwritten(tmp_path: Path) -> None:
    """It may be somebody's own; nothing is written beside it either."""
    (tmp_path / "values.yaml").write_text("mine: 1\n")
    with pytest.raises(ConfigError, match=r"values\.yaml is there already and is not overwritten"):
        write_verdict(tmp_path, msgspec.structs.replace(VERDICT, choice=Choice.NEITHER), spec())
    assert (tmp_path / "values.yaml").read_text() == "mine: 1\n"
    assert not (tmp_path / "anbar.yaml").exists()


@pytest.mark.parametrize(
    ("dtype", "args", "note"),
    [
        (
            "fp8",
            ("--quantization", "fp8"),
            "weights in fp8: `model` must name a checkpoint in that format, or",
        ),
        ("int4", (), "weights in int4: `model` must name a checkpoint in that format."),
        ("bfloat16", (), ""),
    ],
)
def test_the_format_of_the_weights_is_kept(
    tmp_path: Path, dtype: str, args: tuple[str, ...], note: str
) -> None:
    """Vllm makes FP8 of 16 bits by itself; of others the file says what it was reckoned with."""
    write_verdict(tmp_path, msgspec.structs.replace(VERDICT, choice=Choice.NEITHER), spec(dtype=dtype))
    launch = load(tmp_path / "anbar.yaml").config.engines[0].launch
    assert launch is not None
    assert launch.args == args
    text = (tmp_path / "anbar.yaml").read_text()
    assert note in text
    assert ("The verdict is of weights" in text) is bool(note)


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    """Is named."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file: cannot be written"):
        write_verdict(tmp_path / "file", VERDICT, spec(store=StoreSpec(medium="valkey-25gbe")))


def test_the_page_needs_nothing_else() -> None:
    """All of the verdict is in it, nothing is fetched, and text is text."""
    page = verdict_as_html(VERDICT)
    for words in (
        "it &lt;pays&gt;",
        "50 %",
        "1 / 2",
        "a&amp;b",
        "the log is short",
        "look out",
        "--ram",
        "LRU",
    ):
        assert words in page
    assert "335.0,282.0 335.0,186.0 620.0,186.0 620.0,42.0" in page
    assert '<line class="mark" x1="477.5"' in page
    assert 'text-anchor="end">all that came again' in page
    assert not any(word in page for word in ("http", "<script", "src=", "url("))


def test_the_page_of_a_workload_without_reuse() -> None:
    """Has no curve."""
    page = verdict_as_html(msgspec.structs.replace(VERDICT, curve=(), capacities=(), tenants=()))
    assert "<svg" not in page


def test_all_of_it_as_text() -> None:
    """Arithmetic only where it was asked for."""
    text = verdict_as_text(VERDICT, 100, with_arithmetic=False)
    for words in (
        "Verdict: shared (confidence: medium)",
        "because: it <pays>",
        "doubt: the log is short",
        "would change it: a pool twice as large -> neither (fits_device)",
        "warning: look out",
        "not said: --ram",
        "assumed: LRU",
        "a&b",
        "a cache of  finds",
        "1.5 GB   20 %  ████████              the GPUs",
    ):
        assert words in text
    assert "= 1 / 2" not in text
    assert "= 1 / 2" in verdict_as_text(VERDICT, 100, with_arithmetic=True)
