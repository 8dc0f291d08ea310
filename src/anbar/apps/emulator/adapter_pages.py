"""Loading and unloading LoRA adapters at run time. Source: vLLM 0.32 `entrypoints/openai/models/serving.py`.

Nothing is read from the path: an adapter changes names and the identity of KV, not answers.
"""

from typing import cast

from anbar.adapters.http.message import Answer, Request
from anbar.apps.emulator.body import parse_json
from anbar.apps.emulator.body_models import LoadAdapter, UnloadAdapter, typed
from anbar.apps.emulator.errors import ApiError
from anbar.apps.emulator.state import EngineState


class AdapterPages:
    """The list of adapters of one engine."""

    def __init__(self, state: EngineState) -> None:
        self._state = state

    def load(self, request: Request) -> Answer:
        """A further adapter, or one that is loaded anew with `load_inplace`."""
        state, body = self._state, typed(parse_json(request), LoadAdapter)
        name, path = cast(str, body["lora_name"]), cast(str, body["lora_path"])
        if not name or not path:
            raise _wrong("Both 'lora_name' and 'lora_path' must be provided.")
        if name in state.settings.served_names:
            raise _wrong(f"The lora adapter '{name}' conflicts with a served base model.")
        if name in state.adapters and not body.get("load_inplace"):
            raise _wrong(
                f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in "
                "place, set 'load_inplace' to True."
            )
        state.load_adapter(name, path)
        return _text(f"Success: LoRA adapter '{name}' added successfully.")

    def unload(self, request: Request) -> Answer:
        """Forget an adapter; requests that use it go on."""
        name = cast(str, typed(parse_json(request), UnloadAdapter)["lora_name"])
        if not name:
            raise _wrong("'lora_name' needs to be provided to unload a LoRA adapter.")
        if name not in self._state.adapters:
            text = f"The lora adapter '{name}' cannot be found."
            raise ApiError(text, status=404, kind="NotFoundError")
        del self._state.adapters[name]
        return _text(f"Success: LoRA adapter '{name}' removed successfully.")


def _wrong(message: str) -> ApiError:
    return ApiError(message, kind="InvalidUserInput")


def _text(text: str) -> Answer:
    return Answer(200, text.encode(), ())
