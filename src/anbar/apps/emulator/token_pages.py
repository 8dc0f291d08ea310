"""/tokenize and /detokenize. Source: vLLM 0.32 `entrypoints/serve/tokenize/`."""

from typing import cast

from anbar.adapters.http.message import Answer, Request
from anbar.apps.emulator.body import parse_json
from anbar.apps.emulator.body_models import Detokenize, TokenizeChat, TokenizeText, fits, typed
from anbar.apps.emulator.errors import ApiError, Json
from anbar.apps.emulator.fields import check_generation_prompt
from anbar.apps.emulator.generate_request import served_model
from anbar.apps.emulator.pages import answer
from anbar.apps.emulator.prompts import chat_prompt, completion_prompts
from anbar.apps.emulator.state import EngineState

_TOO_LARGE = 2**32
"""For the tokenizer's own numbers."""


class TokenPages:
    """Text and chats to token ids and back."""

    def __init__(self, state: EngineState) -> None:
        self._state = state

    def tokenize(self, request: Request) -> Answer:
        """The ids that a prompt has, or a chat."""
        body = parse_json(request)
        if "messages" in body and (chat := fits(body, TokenizeChat)) is not None:
            body = chat
        else:
            body = typed(body, TokenizeText, TokenizeChat)
        served_model(body, self._state.served)
        tokens = self._tokens(body)
        strings = self._state.text.pieces(tokens) if body.get("return_token_strs") else None
        length = self._state.settings.shape.max_model_len
        return answer(
            {"count": len(tokens), "max_model_len": length, "tokens": tokens, "token_strs": strings}
        )

    def detokenize(self, request: Request) -> Answer:
        """The text of ids, special tokens included."""
        body = typed(parse_json(request), Detokenize)
        served_model(body, self._state.served)
        tokens = cast(list[int], body["tokens"])
        if tokens and max(tokens) >= _TOO_LARGE:
            raise ApiError("number too large to fit in target type")
        return answer({"prompt": self._state.text.decode(tokens)})

    def _tokens(self, body: Json) -> tuple[int, ...]:
        text = self._state.text
        if "messages" in body:
            check_generation_prompt(body)
            return chat_prompt(body, text)
        if not body["prompt"]:
            return ()
        _, (tokens,) = completion_prompts(body, text)
        return tokens
