"""`anbar advise` as it is typed."""

import json
from pathlib import Path

import pytest

from anbar.plan.catalogue import MODELS
from tests.unit.cli.test_commands import anbar


def test_a_calculator_says_its_figures_and_its_arithmetic(tmp_path: Path) -> None:
    """4K tokens of a 70B in FP8 from spinning disks: sizes, times, what follows; with --explain how."""
    asked = ["advise", "tier-read", "--model", "meta-llama/Llama-3.1-70B-Instruct", "--tp", "4"]
    asked += ["--dtype", "fp8", "--kv-dtype", "fp8", "--tokens", "4096", "--from", "ceph-hdd"]
    done = anbar(*asked, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "671 MB" in done.stdout
    assert "12.6 s" in done.stdout
    assert "helps no request's latency" in done.stdout
    assert "assumed: prefill times: AIConfigurator" in done.stdout
    explained = anbar(*asked, "--explain", cwd=tmp_path)
    assert "= 163,840 x 4,096" in explained.stdout


def test_a_models_own_config_as_json(tmp_path: Path) -> None:
    """A directory with config.json, answered for a program."""
    (tmp_path / "config.json").write_text(json.dumps(MODELS["Qwen3-8B"]))
    done = anbar("advise", "kv-size", "--model", ".", "--tokens", "1000", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    figures = {figure["name"]: figure["value"] for figure in json.loads(done.stdout)["figures"]}
    assert figures["KV of 1,000 tokens"] == 147_456_000


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "config.json: cannot be read: No such file"),
        ("{", "config.json: is not JSON"),
        ("[]", "config.json: must be an object"),
        ("{}", "config.json: num_hidden_layers is None, must be a whole number of at least 1"),
    ],
)
def test_a_config_that_cannot_be_used_is_named(tmp_path: Path, content: str | None, words: str) -> None:
    """In one line, with the file."""
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    done = anbar("advise", "kv-size", "--model", "config.json", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert words in done.stderr


def test_reuse_of_a_trace_by_tier(tmp_path: Path) -> None:
    """A cycle of documents that host RAM holds and the GPU does not; sizes as people write them."""
    rows = [
        {
            "timestamp": n,
            "input_length": 10_241,
            "output_length": 1,
            "hash_ids": list(range(20 * k, 20 * k + 20)),
        }
        for n in range(300)
        for k in [n % 100]
    ]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = ["advise", "reuse", "log.jsonl", "--model", "Llama-3.1-8B", "--host-bytes", "150GB"]
    done = anbar(*asked, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "host RAM adds 66.7 %" in done.stdout
    assert (
        "--host-bytes: is 'much'; allowed: a whole number of bytes"
        in anbar(*asked[:-1], "much", cwd=tmp_path).stderr
    )
    assert "At most 66.7 %" in anbar(*asked[:3], cwd=tmp_path).stdout


def test_a_trace_without_blocks_tells_nothing_of_reuse(tmp_path: Path) -> None:
    """It says so, and what would."""
    (tmp_path / "a.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,480,10\n"
    )
    done = anbar("advise", "reuse", "a.csv", cwd=tmp_path)
    assert done.returncode == 2
    assert "a.csv: does not tell what prompts have in common" in done.stderr
    assert "router.record" in done.stderr


def cycle(path: Path) -> None:
    """60 documents of 10,240 tokens, asked for in order four times: 81 GB of an 8B model's KV."""
    rows = [
        {
            "timestamp": 3000 * n,
            "input_length": 10_241,
            "output_length": 50,
            "hash_ids": list(range(20 * k, 20 * k + 20)),
        }
        for n in range(240)
        for k in [n % 60]
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_the_verdict_of_a_log(tmp_path: Path) -> None:
    """Without a command's name; as JSON, as a page, and as a configuration that passes the check."""
    cycle(tmp_path / "log.jsonl")
    asked = ["advise", "log.jsonl", "--model", "Llama-3.1-8B", "--gpu", "H100", "--ram", "100GB"]
    done = anbar(*asked, "--json", "--html", "a.html", "--write", "new", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["choice"], said["reasons"][0]["kind"], said["host_bytes"]) == (
        "native",
        "host_pays",
        81 * 10**9,
    )
    assert "<svg" in (tmp_path / "a.html").read_text()
    checked = anbar("config", "check", "--config", "new/anbar.yaml", cwd=tmp_path)
    assert checked.returncode == 0, checked.stderr


def test_options_come_first_in_any_order(tmp_path: Path) -> None:
    """A verdict's own options may stand before the log; what is missing is asked for by name."""
    cycle(tmp_path / "log.jsonl")
    done = anbar("advise", "--gpu", "H100", "log.jsonl", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "a verdict needs --model (or the same in --deployment FILE)" in done.stderr
    assert "a verdict needs a log of requests" in anbar("advise", "--gpu", "H100", cwd=tmp_path).stderr


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["none.jsonl"], "none.jsonl: cannot be read: No such file"),
        (["empty.jsonl"], "empty.jsonl: is empty; allowed: lines of JSON"),
        (["log.jsonl", "--store-bytes", "1TB"], "--store-bytes: of which store? give --store-medium too"),
        (["log.jsonl", "--ram", "much"], "command line --ram: is 'much'"),
        (["log.jsonl", "--gpu", "L4", "--dtype", "float32"], "the weights (32.1 GB) do not fit on 1 x L4"),
        (["--metrics", "file:///etc/passwd"], "allowed: http://HOST:PORT/metrics"),
        (
            ["log.jsonl", "--metrics", "http://a/metrics"],
            "--metrics: metrics give no verdict; a log needs one",
        ),
        (["log.jsonl", "--write", "old"], "--write: old/anbar.yaml is there already and is not overwritten"),
    ],
)
def test_what_cannot_be_judged_is_said(tmp_path: Path, words: list[str], complaint: str) -> None:
    """In a line that names file or option."""
    cycle(tmp_path / "log.jsonl")
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "old").mkdir()
    (tmp_path / "old/anbar.yaml").write_text("mine: 1\n")
    model = [] if "--metrics" in words else ["--model", "Llama-3.1-8B"]
    gpu = [] if "--gpu" in words or "--metrics" in words else ["--gpu", "H100"]
    done = anbar("advise", *words, *model, *gpu, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert complaint in done.stderr
