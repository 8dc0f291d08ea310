"""The two requests that a split one becomes: the client's own bytes, with what differs put in place."""

from collections.abc import Mapping

import msgspec

from anbar.adapters.http.openai import ApiRequest
from anbar.adapters.http.rewrite import with_members

PARAMS = "kv_transfer_params"

_ONE_TOKEN = {
    "max_completion_tokens": b"1",
    "min_tokens": b"0",
    "stream": b"false",
    "stream_options": b"null",
}
"""Set where the client's body has them."""

_encode = msgspec.json.encode

Wish = Mapping[str, object] | None
"""What the router says of a tenant's request in any case (`ApiRequest.wish`)."""

_REMOTE_DECODE: Mapping[str, object] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
REMOTE_DECODE = _encode(_REMOTE_DECODE)
"""To a prefill engine with vLLM's NixlConnector: keep the blocks, and say where they are."""


def storing(wish: Wish) -> bytes:
    """To a prefill engine: put it into the shared store, whatever the store's own rules."""
    return _encode({"anbar": {"v": 1, **(wish or {}), "store": "always"}})


def remote_decode(wish: Wish) -> bytes:
    return REMOTE_DECODE if wish is None else _encode({**_REMOTE_DECODE, "anbar": wish})


def can_be_split(api: ApiRequest) -> bool:
    """Whether a request is for one answer, of more than a token, to one prompt whose KV may be reused."""
    body = api.body
    if not api.reads_cache or body.get("prompt_embeds") is not None:
        return False
    if api.wish is None and body.get(PARAMS) is not None:
        return False
    if api.max_output_tokens is not None and api.max_output_tokens <= 1:
        return False
    if any(body.get(name) not in (None, 1) for name in ("n", "best_of")) or body.get("use_beam_search"):
        return False
    prompt = body.get("prompt")
    return not isinstance(prompt, list) or not prompt or isinstance(prompt[0], int) or len(prompt) == 1


def prefill_body(body: bytes, api: ApiRequest, params: bytes) -> bytes:
    """The request whose answer ends with its first token."""
    present = {name: value for name, value in _ONE_TOKEN.items() if api.body.get(name) is not None}
    return with_members(body, api.body, {"max_tokens": b"1", PARAMS: params, **present})


def keeps_out(wish: Wish) -> bool:
    """Whether the request's KV may not be put into the shared store."""
    return wish is not None and wish.get("store") == "never"


def expecting(num_tokens: int, wait_ms: int, wish: Wish = None) -> bytes:
    """To a decode engine: so many tokens of the prompt are being stored, or are stored already."""
    return _encode({"anbar": {"v": 1, **(wish or {}), "expect_tokens": num_tokens, "wait_ms": wait_ms}})


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class PrefillAnswer(msgspec.Struct):
    """What a prefill engine's answer says, as far as it matters."""

    usage: _Usage | None = None
    kv_transfer_params: Mapping[str, object] | None = None

    @property
    def num_tokens(self) -> int:
        """Of the prompt; 0: it does not say."""
        return self.usage.prompt_tokens if self.usage is not None else 0

    @property
    def num_cached(self) -> int | None:
        details = self.usage.prompt_tokens_details if self.usage is not None else None
        return details.cached_tokens if details is not None else None

    @property
    def where(self) -> Mapping[str, object] | None:
        """The transfer parameters for the decode engine; None when there is nothing to fetch."""
        params = self.kv_transfer_params
        return params if params and params.get("do_remote_prefill") else None

    def fetching(self, wish: Wish) -> bytes:
        """To a decode engine: fetch it from there; null when there is nothing to fetch."""
        where = self.where
        return _encode({**where, "anbar": wish} if where is not None and wish is not None else where)


_decode = msgspec.json.Decoder(PrefillAnswer).decode


def read_answer(body: bytes) -> PrefillAnswer:
    """Of an answer with status 200; one that cannot be read says nothing."""
    try:
        return _decode(body)
    except msgspec.MsgspecError:
        return PrefillAnswer()
