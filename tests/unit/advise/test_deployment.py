"""The deployment that is asked about."""

from pathlib import Path
from typing import Any

import pytest

from anbar.apps.advise.deployment import missing_of, read_deployment, read_stack, stack_of
from anbar.core.errors import ConfigError
from anbar.plan.media import MEDIA

FILE = """\
model: Llama-3.1-70B
gpu: nvidia_h100
tensor_parallel: 4
engines: 8
kv_dtype: fp8
ram: 1TB
store: {medium: valkey-25gbe, capacity: 4TB, round_trip_s: 0.002}
affinity: false
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "d.yaml"
    path.write_text(text)
    return path


def test_a_file_and_options_beside_it(tmp_path: Path) -> None:
    """What is said on the command line comes first."""
    spec = read_deployment(written(tmp_path, FILE), {"engines": 2, "model": None})
    stack = stack_of(spec)
    assert (stack.num_engines, stack.engine.name, stack.engine.gpu_name) == (2, "Llama-3.1-70B", "H100")
    assert (stack.engine.num_gpus, stack.engine.kv_dtype, stack.engine.weight_format) == (
        4,
        "fp8",
        "bfloat16",
    )
    assert stack.store is not None
    assert (stack.store.medium, stack.store.num_bytes) == (MEDIA["valkey-25gbe"], 4 * 10**12)
    assert (stack.host_bytes, stack.has_affinity) == (10**12, False)
    assert missing_of(spec) == ("--pool-tokens (vLLM logs at its start how many fit)",)


def test_what_is_missing_is_asked_for_by_name() -> None:
    """What a verdict cannot do without is an error, what it would be surer with a list."""
    with pytest.raises(ConfigError, match="a verdict needs --model and --gpu"):
        stack_of(read_deployment(None, {}))
    with pytest.raises(ConfigError, match="a verdict needs --gpu "):
        stack_of(read_deployment(None, {"model": "Qwen3-8B"}))
    spec = read_deployment(None, {"model": "Qwen3-8B", "gpu": "L4", "engines": 2})
    assert [text.split()[0] for text in missing_of(spec)] == ["--ram", "--store-medium", "--pool-tokens"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model: a\nmodle: b\n", "d.yaml:2: modle: unknown key; did you mean `model`?"),
        ("model: a\nengines: 0\n", "d.yaml:2: engines: is 0"),
        ("store:\n  medium: x\n  capacity: much\n", "d.yaml:3: store.capacity: is 'much'"),
        ("- a\n", "d.yaml:1: "),
        ("a: [", "d.yaml:1: "),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, words: str) -> None:
    """File, line and key."""
    with pytest.raises(ConfigError) as caught:
        read_deployment(written(tmp_path, text), {})
    assert words in str(caught.value)


def test_options_that_are_wrong_are_named(tmp_path: Path) -> None:
    """Not as if they stood in the file; names that are not known are answered with those that are."""
    with pytest.raises(ConfigError, match="command line --engines: is 0"):
        read_deployment(written(tmp_path, FILE), {"engines": 0})
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read: No such file"):
        read_deployment(tmp_path / "none.yaml", {})
    with pytest.raises(ConfigError, match="medium 'tape' is not known; allowed: host-pcie5"):
        stack_of(read_deployment(None, {"model": "Qwen3-8B", "gpu": "L4", "store": {"medium": "tape"}}))
    with pytest.raises(ConfigError, match="GPU 'H9' is not in the catalogue"):
        stack_of(read_deployment(None, {"model": "Qwen3-8B", "gpu": "H9"}))


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            {"ram": "150"},
            "command line --ram: is 150 bytes; allowed: 0 for none, or at least one chunk of 256",
        ),
        ({"ram": "100000TB"}, "command line --ram: is 100,000 TB an engine; allowed: 64 TB"),
        ({"tensor_parallel": 3}, "command line --tp: is 3, and the model has 32 heads; allowed: 1, 2, 4, 8,"),
        ({"pool_tokens": 10**8}, "command line --pool-tokens: is 100,000,000; 1 x H100 hold at most"),
        ({"gpu": "L4", "dtype": "float32"}, "command line --gpu: the weights (32.1 GB) do not fit on 1 x L4"),
        (
            {"store": {"medium": "valkey-25gbe", "capacity": "10"}},
            "command line --store-bytes: is 10 bytes; allowed: at least one chunk of 256 tokens, 33.6 MB",
        ),
    ],
)
def test_the_impossible_is_refused_by_option(said: dict[str, Any], words: str) -> None:
    """The option is named that was given, and what is allowed."""
    with pytest.raises(ConfigError) as caught:
        read_stack(None, {"model": "Llama-3.1-8B", "gpu": "H100", **said})
    assert str(caught.value).startswith(words)


def test_the_impossible_is_refused_by_line(tmp_path: Path) -> None:
    """Of a file; no RAM at all is none."""
    path = written(tmp_path, "model: Llama-3.1-70B\ngpu: L40S\npool_tokens: 20000\n")
    with pytest.raises(ConfigError, match=r"d\.yaml:2: gpu: the weights \(141 GB\) do not fit on 1 x L40S"):
        read_stack(path, {})
    _, stack = read_stack(None, {"model": "Llama-3.1-8B", "gpu": "H100", "ram": "0"})
    assert stack.host_tokens == 0
