"""What the plugin relies on in vLLM 0.32, and what its shell does with vLLM's own classes.

All of it is marked experimental in vLLM. After an upgrade these tests say which name, parameter or field has
changed before anything goes wrong quietly.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.contract


def _run(python: Path, script: str, output: Path) -> dict[str, Any]:
    """Run a script of this directory in the engine's interpreter; what it wrote."""
    path = Path(__file__).with_name(script)
    done = subprocess.run([python, path, output], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    data: dict[str, Any] = json.loads(output.read_text())
    return data


@pytest.fixture(scope="module")
def facts(engine_python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return _run(engine_python, "vllm_facts.py", tmp_path_factory.mktemp("facts") / "facts.json")


@pytest.fixture(scope="module")
def driven(engine_python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return _run(engine_python, "drive_tier.py", tmp_path_factory.mktemp("drive") / "drive.json")


@pytest.fixture(scope="module")
def compared(engine_python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return _run(engine_python, "drive_fingerprints.py", tmp_path_factory.mktemp("compared") / "compared.json")


def test_the_release(facts: dict[str, Any]) -> None:
    """Everything below was read in 0.32."""
    assert facts["version"].startswith("0.32.")


@pytest.mark.parametrize(
    ("name", "members"),
    [
        ("Locality", ["LOCAL", "REMOTE"]),
        ("LookupResult", ["MISS", "HIT", "HIT_PENDING", "RETRY"]),
        ("Medium", ["CPU", "STORAGE"]),
        ("OffloadPolicy", ["CHUNK_LEVEL", "REQUEST_LEVEL"]),
    ],
)
def test_enums(facts: dict[str, Any], name: str, members: list[str]) -> None:
    """A member more may be an answer that we must give or understand."""
    assert facts[name]["members"] == members


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("GPULoadStoreSpec", "block_ids group_sizes block_indices"),
        ("OffloadingConnector", "vllm_config role kv_cache_config"),
        ("OffloadingCounterMetadata", "documentation labelnames"),
        ("OffloadingGaugeMetadata", "documentation labelnames"),
        ("RequestOffloadingContext", "policy"),
        ("SecondaryTierManager", "offloading_spec primary_kv_view tier_type backpressure_detector"),
        ("TieringOffloadingSpec", "config"),
        ("TransferResult", "job_id success transfer_size transfer_time"),
        ("JobResult", "job_id success successful_keys transfer_time transfer_bytes"),
        ("OffloadingEvent", "keys medium removed locality ownership removal_expected"),
        (
            "SharedOffloadRegion",
            "engine_id num_chunks rank kv_bytes_per_chunk cpu_page_size barrier creator_memory_check "
            "populate_only_on_creator",
        ),
    ],
)
def test_constructors(facts: dict[str, Any], name: str, parameters: str) -> None:
    """Those that we call, or that vLLM calls on our subclasses."""
    assert facts[name]["init"] == parameters.split()


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("CanonicalKVCaches", "tensors group_data_refs"),
        ("CanonicalKVCacheTensor", "tensor page_size_bytes"),
        ("CanonicalKVCacheRef", "tensor_idx page_size_bytes mapping"),
        ("TransferJob", "job_id keys chunk_ids is_promotion req_context submit_time"),
        ("OffloadingKVEventsConfig", "enable_kv_cache_events self_describing_kv_events"),
        ("OffloadingCacheConfig", "tokens_per_hash blocks_per_chunk"),
        ("OffloadingGroupConfig", "tokens_per_block layer_names group_id"),
        ("OffloadingModelConfig", "name dtype"),
        (
            "OffloadingConfig",
            "groups worker_kv_bytes_per_block enable_kv_cache_events extra_config engine_id model cache "
            "parallel replicated_layout canonical_layout kv_cache_layout",
        ),
        (
            "OffloadingParallelConfig",
            "rank world_size tp_size pp_size pcp_size dcp_size data_parallel_index data_parallel_size "
            "data_parallel_rank_local is_parallelism_agnostic",
        ),
        ("BlockRemoved", "block_hashes medium group_idx locality ownership"),
        (
            "BlockStored",
            "block_hashes parent_block_hash token_ids block_size lora_id medium lora_name extra_keys "
            "group_idx kv_cache_spec_kind kv_cache_spec_sliding_window locality ownership session_id",
        ),
    ],
)
def test_fields(facts: dict[str, Any], name: str, fields: str) -> None:
    """A new field of a configuration may be something that the fingerprint must contain."""
    assert facts[name]["fields"] == fields.split()


@pytest.mark.parametrize(
    ("name", "needed"),
    [
        ("ReqContext", {"req_id", "kv_transfer_params"}),
        (
            "VllmConfig",
            {"model_config", "cache_config", "attention_config", "speculative_config", "lora_config"},
        ),
        ("ModelConfig", {"model", "dtype", "hf_config", "quantization", "revision"}),
        ("NewRequestData", {"req_id", "num_computed_tokens"}),
        ("CachedRequestData", {"req_ids", "num_computed_tokens"}),
        (
            "SchedulerOutput",
            {
                "num_scheduled_tokens",
                "total_num_scheduled_tokens",
                "scheduled_new_reqs",
                "scheduled_cached_reqs",
                "scheduled_spec_decode_tokens",
            },
        ),
    ],
)
def test_fields_of_large_classes(facts: dict[str, Any], name: str, needed: set[str]) -> None:
    """Of vLLM's own large classes only what we read."""
    assert needed <= set(facts[name]["fields"])


def test_the_worker_interface(facts: dict[str, Any]) -> None:
    """All methods that a worker must have, with their parameters."""
    worker = facts["OffloadingWorker"]
    assert worker["abstract"] == ["get_finished", "submit_load", "submit_store", "wait"]
    assert worker["methods"] == {
        "get_finished": [],
        "shutdown": [],
        "submit_load": ["job_id", "src_spec", "dst_spec"],
        "submit_store": ["job_id", "src_spec", "dst_spec"],
        "wait": ["job_ids"],
    }


def test_the_tier_interface(facts: dict[str, Any]) -> None:
    """All methods of a tier: a new one may be something that the scheduler relies on."""
    tier = facts["SecondaryTierManager"]
    assert tier["abstract"] == [
        "drain_jobs", "get_finished_jobs", "lookup", "on_new_request", "submit_load", "submit_store",
    ]  # fmt: skip
    assert tier["methods"] == {
        "build_metric_definitions": ["extra_config"],
        "drain_jobs": [],
        "get_finished_jobs": [],
        "get_stats": [],
        "has_pending_work": [],
        "lookup": ["key", "req_context"],
        "on_new_request": ["req_context"],
        "on_request_finished": ["req_context"],
        "on_schedule_end": ["context"],
        "serve_external_requests": ["parent"],
        "shutdown": [],
        "submit_load": ["job_metadata"],
        "submit_store": ["job_metadata"],
        "take_events": [],
        "touch": ["keys", "req_context"],
    }


@pytest.mark.parametrize(
    ("name", "needed"),
    [
        ("SharedOffloadRegion", {"_creator", "fd", "mmap_path"}),
        ("OffloadingConnectorScheduler", {"manager"}),
        ("TieringOffloadingManager", {"secondary_tiers"}),
        (
            "TieringOffloadingSpec",
            {
                "_engine_id", "_manager", "_scheduler_mmap", "_worker", "blocks_per_chunk", "config",
                "cpu_page_size_per_worker", "extra_config", "kv_bytes_per_chunk", "kv_events_config",
                "num_chunks", "replicated_layout",
            },
        ),
    ],
)  # fmt: skip
def test_attributes(facts: dict[str, Any], name: str, needed: set[str]) -> None:
    """Attributes of vLLM's objects that our subclasses use."""
    assert needed <= set(facts[name]["attributes"])


@pytest.mark.parametrize(
    ("name", "method", "parameters"),
    [
        ("SharedOffloadRegion", "cleanup", []),
        ("SharedOffloadRegion", "create_next_worker_view", ["tensor_page_size"]),
        ("OffloadingConnectorStats", "set_gauge", ["gauge_name", "gauge_value", "labelvalues"]),
        (
            "OffloadingConnectorStats",
            "increase_counter",
            ["counter_name", "counter_increase_value", "labelvalues"],
        ),
        ("OffloadingConnector", "build_connector_meta", ["scheduler_output"]),
        ("OffloadingConnector", "update_connector_output", ["connector_output"]),
        ("ReqContext", "get_offload_key_position", ["key"]),
        ("TieringOffloadingSpec", "get_manager", []),
        ("TieringOffloadingSpec", "get_worker", ["kv_caches"]),
        ("SecondaryTierFactory", "get_tier_class", ["tier_config"]),
    ],
)
def test_methods(facts: dict[str, Any], name: str, method: str, parameters: list[str]) -> None:
    """Methods that we call or override."""
    assert facts[name]["methods"][method] == parameters


STORED = ["STORAGE", "REMOTE", "anbar:mem", False, 2]


def test_blocks_go_out_and_come_back(driven: dict[str, Any]) -> None:
    """Store, look up, load: the right bytes in the right rows, events with medium, locality and owner,
    counts."""
    before, stored, after, loaded, rows, events, stats = driven["round_trip"]
    assert (before, after) == (["RETRY", "MISS"], ["RETRY", "HIT"] * 2)
    assert (stored, loaded, rows) == (True, True, [22, 11])
    assert events == [STORED, STORED]
    assert stats["anbar_tier_loads:hit"] == stats["anbar_tier_stores:hit"] == 2
    assert stats["anbar_tier_bytes:load"] == stats["anbar_tier_bytes:store"] == 128
    assert stats["anbar_tier_breaker_state"] == 0


def test_a_failed_load_cannot_loop(driven: dict[str, Any]) -> None:
    """Partial success is told key by key; a damaged and a vanished key are announced as removed and are
    misses for this request from then on."""
    found, success, good, again, events = driven["failed_load"]
    assert found == [["RETRY", "HIT"]] * 3
    assert (success, good) == (False, [1])
    assert again == [["HIT"], ["MISS"], ["MISS"]]
    assert any("True" in event for event in events)


def test_the_beginning_of_a_prefix_is_stored_first(driven: dict[str, Any]) -> None:
    """Twelve keys in no order, room for eight: the first eight of the prefix."""
    assert driven["order"] == list(range(8))


def test_a_chunk_saves_less_than_the_one_before_it(driven: dict[str, Any]) -> None:
    """What the store is told of two jobs of one prompt, by which its tail is evicted before its head,
    and of what is loaded of it, for copies that are made then."""
    assert driven["worth"] == [True, True, True, True]


def test_an_outage_costs_one_deadline(driven: dict[str, Any]) -> None:
    """MISS after the deadline, then without asking the store; stores are acknowledged; recovery without a
    restart."""
    assert driven["outage"] == ["MISS", ["MISS"], True, True, 2, "MISS", 0]


def test_a_full_or_defective_store_only_fails_jobs(driven: dict[str, Any]) -> None:
    """Every job ends; what the store raised is counted; nothing is announced."""
    assert driven["full"] == [False, False, False, 2, []]


def test_wishes_are_honoured(driven: dict[str, Any]) -> None:
    """The same scope hits, others and unreadable wishes miss; "never" stores nothing."""
    assert driven["wishes"] == [["HIT", "MISS", "MISS", "MISS", "MISS"], True, 1]


def test_a_full_store_gets_what_is_used_again(driven: dict[str, Any]) -> None:
    """The beginning of a prompt, then what was offered twice, and everything again when nothing presses; told
    by metrics."""
    *numbers, stats, engaged_later = driven["pressure"]
    assert numbers == [1, 2, 3]
    assert stats["anbar_tier_filtered_stores:full"] == stats["anbar_tier_stores:filtered"] == 1
    assert stats["anbar_tier_reuse_filter_engaged:full"] == stats["anbar_tier_reuse_filter"] == 1
    assert engaged_later == 0


def test_only_what_pays_is_loaded(driven: dict[str, Any]) -> None:
    """Three chunks are in the store, and loads have shown what they take. For an engine that computes a token
    in a picosecond they are a miss at once and told as skipped; for one that takes a second they are loaded;
    and the metrics of both ways are there."""
    skipped, loaded, stats = driven["break_even"]
    assert (skipped, loaded) == (["RETRY", "MISS"], ["RETRY", "HIT"])
    assert stats["anbar_tier_lookups:skipped_by_break_even"] == 3
    assert stats["anbar_tier_decisions:skip"] == stats["anbar_tier_decisions:load"] == 1
    assert stats["anbar_tier_load_bytes_per_second"] > 0


def test_a_quick_store_is_heard_within_the_step(driven: dict[str, Any]) -> None:
    """Not before steps are known, not while it hangs; then a new request's keys have an answer in the step
    they were asked for in. With nothing to ask there is nothing to hear."""
    assert driven["hearing"] == [False, False, True, "MISS", False]


def test_steps_are_read(driven: dict[str, Any]) -> None:
    """vLLM's own description of a step: 96 tokens of one prompt behind 32, and two answers."""
    assert driven["steps"] == [96, 128**2 - 32**2, 2]


def test_fingerprints_differ_in_every_field(compared: dict[str, Any]) -> None:
    """Engines that differ from one in one respect each, from the weights to the minor version of vLLM and
    every kind of parallelism, have each a fingerprint of their own; where the model's directory lies, which
    rank asks and a patch of vLLM make no difference."""
    assert compared["fingerprints"] == [[], [], True]


def test_lora_needs_a_name_for_its_weights(compared: dict[str, Any]) -> None:
    """vLLM's hashes have an adapter's name and path, not its weights: sharing is refused until weights_id
    vouches for them."""
    text, is_accepted = compared["adapters"]
    assert "LoRA" in text
    assert "weights_id" in text
    assert is_accepted


def test_metrics_are_defined(driven: dict[str, Any]) -> None:
    """vLLM refuses a sample whose metric or labels were not announced, and that ends the API server."""
    assert driven["metrics"] is True


def test_parts_of_a_store_are_counted(driven: dict[str, Any]) -> None:
    """Two keys stored in two copies, one part refuses: each part's keys by result, with the labels that were
    announced, and the state of each part's breaker."""
    success, fits, told, breakers = driven["parts"]
    assert success
    assert fits
    assert told == {"both:lost:store:error": 2, "both:kept:store:hit": 2}
    assert breakers == [["both", "kept"], ["both", "lost"]]


def test_a_tenants_blocks_end_with_its_key(driven: dict[str, Any]) -> None:
    """Two tenants with data keys and one without store the same key. The second one's data key is deleted: it
    finds nothing and loads nothing, the first one does. Keys are counted by tenant, those of the one that is
    not listed under the name of all such, and what was told was announced. A scope that the router says is
    encrypted, and of which this engine knows nothing, leaves no trace in the store."""
    found, told, quota = driven["tenants"]
    assert found == [True, True, True, "HIT", True, "MISS", False, [["MISS"], ["MISS"]], True]
    assert told == {
        **{f"f:{scope}:store:hit": 1 for scope in ("kept", "lost", "(other)")},
        "f:kept:lookup:hit": 1,
        "f:kept:load:hit": 1,
        "f:lost:lookup:no_key": 1,
        "f:lost:load:no_key": 1,
    }
    assert quota == 10**6


def test_wrong_settings_are_named(driven: dict[str, Any]) -> None:
    """Key, value and what is allowed; and why the connector is needed."""
    assert "tenants.scopes.a.quota_bytes" in driven["wrong quota"]
    assert driven["wrong load"] == "load is 'often'; allowed: auto, always"
    texts = [driven[f"error {number}"] for number in range(5)]
    for text, part in zip(
        texts, ("allowed: files", "path", "speed", "/dev/null", "capacity_bytes"), strict=True
    ):
        assert part in text
    assert "AnbarConnector" in driven["without configuration"]


def test_a_store_without_a_name_has_the_routers(driven: dict[str, Any]) -> None:
    """An engine that was started by hand and the router agree on what a store is called."""
    in_the_engine, in_the_router = driven["default id"]
    assert in_the_engine == in_the_router
