"""Checks of values that vLLM refuses, field by field.

Source: vLLM 0.32 `sampling_params.py`, `renderers/params.py`, `entrypoints/openai/*/protocol.py`.
"""

from anbar.testing.engine_contract.refusals import (
    CHATS,
    COMPLETIONS,
    TOKENIZE,
    Refusal,
    checked,
    plain,
    typed,
    value,
)
from anbar.testing.engine_contract.target import Target, context_length

_UNTRUSTED = (
    "Chat template is passed with request, but --trust-request-chat-template is not set. "
    "Refused request with untrusted chat template."
)
_TOO_MANY = "which is greater than max allowed: 20"
_BOTH = (
    value("temperature", -1, "temperature must be non-negative, got -1.0.", shown="-1.0"),
    value("temperature", 99, "temperature must be in [0, 2], got 99.0.", shown="99.0"),
    value("top_p", 0, "top_p must be in (0, 1], got 0.0.", shown="0.0"),
    value("top_p", 1.5, "top_p must be in (0, 1], got 1.5.", shown="1.5"),
    plain("top_k", -2, "top_k must be 0 (disable), or at least 1, got -2."),
    plain("min_p", 2, "min_p must be in [0, 1], got 2.0."),
    plain("presence_penalty", 3, "presence_penalty must be in [-2, 2], got 3.0."),
    plain("frequency_penalty", -3, "frequency_penalty must be in [-2, 2], got -3.0."),
    plain("repetition_penalty", 0, "repetition_penalty must be greater than zero, got 0.0."),
    plain("n", 2, "n must be 1 when using greedy sampling, got 2."),
    value("max_tokens", 0, "max_tokens must be at least 1, got 0.", shown=0),
    value("max_tokens", -1, "max_tokens must be at least 1, got -1.", shown=-1),
    value(
        "max_tokens",
        10**8,
        "max_tokens=100000000 cannot be greater than max_model_len={length}. "
        "Please request fewer output tokens.",
        shown=10**8,
    ),
    plain("min_tokens", 5, "min_tokens must be less than or equal to max_tokens=4, got 5."),
    plain("min_tokens", -1, "min_tokens must be greater than or equal to 0, got -1."),
    plain("stop", "", "stop cannot contain an empty string."),
    value(
        "logit_bias",
        {"x": 1},
        "logit_bias contains key(s) that cannot be converted to integer token IDs: ['x']",
        shown=["x"],
    ),
    value("allowed_token_ids", [], "allowed_token_ids is not None and empty!", shown=[]),
    plain("bad_words", [""], "bad_words cannot contain an empty string. Got bad_words=['']"),
    value("prompt_logprobs", -2, "`prompt_logprobs` must be a positive value or -1.", shown=-2),
    value("prompt_logprobs", "x", "`prompt_logprobs` must be an integer.", shown="x"),
    value("prompt_logprobs", 10**6, f"Requested prompt logprobs of 1000000, {_TOO_MANY}", shown=10**6),
    value("prompt_logprobs", -1, f"Requested prompt logprobs of …, {_TOO_MANY}", shown="…"),
    plain("n", 0, "n must be at least 1, got 0."),
    plain("truncate_prompt_tokens", 0, "The decoder prompt cannot be empty"),
    value(
        "truncate_prompt_tokens",
        10**8,
        "truncate_prompt_tokens=100000000 cannot be greater than max_model_len = {length}. "
        "Please request a smaller truncation size.",
        shown=10**8,
    ),
    value(
        "stream_options", {"include_usage": True}, "Stream options can only be defined when `stream=True`."
    ),
    value("cache_salt", "", "Parameter 'cache_salt' must be a non-empty string if provided."),
    value("cache_salt", 5, "Parameter 'cache_salt' must be a non-empty string if provided."),
    value(
        "cache_salt",
        "a" * 129,
        "Parameter 'cache_salt' must be at most 128 characters and must not contain '@', '/', "
        "'\\\\', or NUL.",
    ),
)
"""What completions and chats refuse alike."""


def check_refused_values(target: Target) -> None:
    """Values out of range are refused by completions and chats in the same words."""
    for path in (COMPLETIONS, CHATS):
        checked(target, path, _BOTH)


def check_refused_numbers(target: Target) -> None:
    """Numbers that are none: not-a-number and the infinities, which JSON as Python reads it may hold."""
    for number in (float("nan"), float("inf"), -float("inf")):
        rows = (
            value("temperature", number, f"temperature must be a finite number, got {number}.", shown=number),
            value("top_p", number, f"top_p must be in (0, 1], got {number}.", shown=number),
            plain("min_p", number, f"min_p must be in [0, 1], got {number}."),
            plain("presence_penalty", number, f"presence_penalty must be in [-2, 2], got {number}."),
            plain("repetition_penalty", number, f"repetition_penalty must be a finite number, got {number}."),
            typed("max_tokens", number, "finite_number", "Input should be a finite number", f"{number}"),
            typed("n", number, "finite_number", "Input should be a finite number", f"{number}"),
        )
        for path in (COMPLETIONS, CHATS):
            checked(target, path, rows)


def check_refused_completions(target: Target) -> None:
    """What only completions have: prompts that are none, log-probabilities by number."""
    nothing = "Either prompt or prompt_embeds must be provided and non-empty."
    rows = (
        value("prompt", None, nothing),
        value("prompt", "", nothing),
        plain("prompt", [], "You must pass at least one prompt"),
        plain("prompt", [[]], "The decoder prompt cannot be empty"),
        value("logprobs", 21, f"Requested sample logprobs of 21, {_TOO_MANY}", shown=21),
        value("logprobs", -1, f"Requested sample logprobs of …, {_TOO_MANY}", shown="…"),
        value("logprobs", -2, "`logprobs` must be a positive value or -1.", shown=-2),
        value("logprobs", "2", "`logprobs` must be an integer.", shown=2),
        Refusal(
            {"suffix": "x"},
            "suffix is only supported for models with FIM completion rendering",
            "suffix",
        ),
    )
    checked(target, COMPLETIONS, rows)


def check_refused_lengths(target: Target) -> None:
    """Prompts longer than the context, and prompts that leave no room for an answer."""
    length = context_length(target)
    head = "This model's maximum context length is {length} tokens. However, your prompt contains"
    tail = (
        "input tokens, which exceeds this limit even without any output tokens. "
        "Please reduce the length of the input prompt. (parameter=input_tokens, value="
    )
    just = f"{head} at least {length + 1} {tail}{length + 1})"
    rows = (
        Refusal({"prompt": [5] * (length + 1)}, just, "input_tokens"),
        Refusal({"prompt": [5] * (length + 9)}, f"{head} {length + 9} {tail}{length + 9})", "input_tokens"),
        Refusal({"prompt": "the water " * length}, just, "input_tokens"),
        Refusal(
            {"prompt": [5] * length},
            "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)",
            "max_tokens",
        ),
        Refusal({"prompt": [[5], [5] * (length + 1)]}, just, "input_tokens"),
    )
    checked(target, COMPLETIONS, rows)
    content = [{"role": "user", "content": "the water " * length}]
    checked(target, CHATS, [Refusal({"messages": content}, just, "input_tokens")])


def check_refused_chats(target: Target) -> None:
    """What only chats have: messages, log-probabilities by a flag, templates."""
    both = "Cannot set both `continue_final_message` and `add_generation_prompt` to True."
    empty = "Cannot apply chat template to an empty conversation. Provide at least one message."
    least = "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)"
    flag = {"logprobs": True}
    rows = (
        plain("messages", [], empty),
        Refusal({"continue_final_message": True, "add_generation_prompt": True}, both),
        value("top_logprobs", 2, "when using `top_logprobs`, `logprobs` must be set to true."),
        value("top_logprobs", -2, "`top_logprobs` must be a positive value or -1.", shown=-2),
        value("top_logprobs", "2", "`top_logprobs` must be an integer.", shown=2),
        *(
            Refusal(
                {**flag, "top_logprobs": top},
                f"Requested sample logprobs of {shown}, {_TOO_MANY} (parameter=logprobs, value={shown})",
                "logprobs",
            )
            for top, shown in ((21, "21"), (-1, "…"))
        ),
        value(
            "max_completion_tokens",
            10**8,
            "max_completion_tokens=100000000 cannot be greater than max_model_len={length}. "
            "Please request fewer output tokens.",
            shown=10**8,
        ),
        Refusal({"max_completion_tokens": 0}, least, "max_tokens"),
        Refusal({"echo": True, "max_tokens": 0}, least, "max_tokens"),
        plain("chat_template", "x", _UNTRUSTED),
        plain("chat_template_kwargs", {"chat_template": "x"}, _UNTRUSTED),
    )
    checked(target, CHATS, rows)


def check_refused_tokenizing(target: Target) -> None:
    """/tokenize refuses templates and contradictions as chats do."""
    messages = [{"role": "user", "content": "a"}]
    both = {"continue_final_message": True, "add_generation_prompt": True}
    rows = (
        Refusal({"messages": messages, "chat_template": "x"}, _UNTRUSTED),
        Refusal(
            {"messages": messages, **both},
            "Cannot set both `continue_final_message` and `add_generation_prompt` to True.",
        ),
        Refusal(
            {"messages": []},
            "Cannot apply chat template to an empty conversation. Provide at least one message.",
        ),
    )
    checked(target, TOKENIZE, rows)
