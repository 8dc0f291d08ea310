"""A fleet of vLLM engines that compute nothing: vLLM 0.32's API, KV events and metrics on the engine model.

    async with EmulatedEngine(EngineSettings(model_dir=write_tiny_model(tmp_path / "model"))) as engine:
        ...  # POST to f"{engine.url}/v1/chat/completions"

How it is put together, from the client inwards:

- `service` routes requests to `pages`, `adapter_pages`, `token_pages`, `admin` and generation.
- `body`, `body_models`, `fields`, `prompts`, `transfer_params`, `generate_request` turn a body into a valid
  request, or refuse as vLLM does (`errors`).
- `generation` answers one request from the tokens of its sequences, `embedding` does so for pooling models;
  `shapes` and `logprobs` say how answers look; `sink` writes them, bent by the `faults` that are armed;
  `playing` answers with exact bytes.
- `sequence` is one run of tokens in the engine model, its text from `answers` and `text`; `loop` runs the
  model on the real clock (`pacing`); `kv` turns the model's events into vLLM's (`spoiled_events`).
- `stats` and `metrics` (on `histograms`) are the page of Prometheus; `records` is what tests look at.
- `settings` says what one engine is; `flags` (by `flag_values`) and `launch` (with `json_flags` and
  `environment`) read that from vLLM's command line (`default_cost` where it says nothing of costs);
  `typed_fields` and `bounds` say what is wrong with JSON.
- `state` is one engine without its sockets, `engine` with them, `fleet` many; `tiny_model` needs no download.
"""

from anbar.apps.emulator.engine import EmulatedEngine
from anbar.apps.emulator.faults import Fault, FaultKind, Scope, Script
from anbar.apps.emulator.pacing import steady
from anbar.apps.emulator.records import Ending, Seen
from anbar.apps.emulator.settings import EngineSettings, Runner
from anbar.apps.emulator.spoiled_events import EventFaults
from anbar.apps.emulator.tiny_model import write_tiny_model

__all__ = [
    "EmulatedEngine",
    "Ending",
    "EngineSettings",
    "EventFaults",
    "Fault",
    "FaultKind",
    "Runner",
    "Scope",
    "Script",
    "Seen",
    "steady",
    "write_tiny_model",
]
