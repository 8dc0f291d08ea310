"""The prompts by which the router's tokens are compared with an engine's, each named for what it tries."""

from collections.abc import Iterator

Body = dict[str, object]

_SYSTEM = {"role": "system", "content": "You keep the books of a storehouse. Answer in one sentence."}
_QUESTION = {
    "role": "user",
    "content": "How much is left? It was 1,234.5 kg in '25.\n\n  - wheat\n\t- rice",
}
_TEXTS = {
    "persian": "چقدر غله در انبار مانده است؟ می‌روم و «کتاب» را می‌آورم؛ ۱۲۳ کیلو.",
    "hindi": "अंबार में कितना अनाज बचा है? क्षेत्र की किताब लाओ। १२३ किलो।",
    "emoji": "🌾🛖 👩‍🌾👨🏽‍🌾 🇮🇷🇮🇳 ☔️ 🜚 a\u0301 é ﷽",
}
_TOOL = {
    "type": "function",
    "function": {
        "name": "stock",
        "description": "How much of a good is left. موجودی انبار، अनाज 🌾",
        "parameters": {
            "type": "object",
            "properties": {"good": {"type": "string", "enum": ["wheat", "rice"]}, "at": {"type": "number"}},
            "required": ["good"],
        },
    },
}


def chats(model: str) -> Iterator[tuple[str, Body]]:
    """Bodies of chats: a plain one, and one more for each thing that may go wrong by itself."""
    yield "chat", {"model": model, "messages": [_QUESTION]}
    yield "system", {"model": model, "messages": [_SYSTEM, _QUESTION]}
    yield "tools", {"model": model, "messages": [_SYSTEM, _QUESTION], "tools": [_TOOL]}
    for name, text in _TEXTS.items():
        answer = {"role": "assistant", "content": text}
        asked = {"role": "user", "content": text}
        yield name, {"model": model, "messages": [_SYSTEM, asked, answer, _QUESTION]}


def completions(model: str) -> Iterator[tuple[str, Body]]:
    """The same texts, as they are."""
    texts = [str(_QUESTION["content"]), *_TEXTS.values()]
    yield "completion", {"model": model, "prompt": " ".join(texts)}
