"""router-tokens: what token ids cost the router, beside the tokenizer's own `encode` of the same text.

A conversation of 100,000 tokens gets one turn of 200 tokens more, and so does one document; then text that
was never seen, once a megabyte of other text was, and words that nobody has seen. The texts are this
repository's own sources and pages, and Persian and Hindi sentences between them. Times are processor times
of the one thread that works. The two take turns to be first with a text: whoever is finds cold caches, which
with 400 bytes is a third of the time.
"""

import argparse
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tokenizers import Tokenizer as Raw
from transformers import AutoTokenizer

from anbar.adapters.vllm.reading import Reading
from anbar.adapters.vllm.tokens import NotReproducible, Tokenizer, load_tokenizer
from anbar.apps.model import models_dir
from anbar.config.models import DEFAULT_MODEL
from benchmarks.report import Report, Series

ROOT = Path(__file__).parents[1]
CONVERSATION_TOKENS = 100_000
TURN_TOKENS = 200
FRESH_BYTES = 32_768
LEARNT_BYTES = 1 << 20
SHORT_BYTES = 400
SHORT_TEXTS = 20
"""In each round: what one short text takes is mostly chance."""
FIRST_CHARS = 512
"""What the router reads of a prompt before it asks whether an engine knows it."""
WANTED_SHARE = 0.05
"""Most that a new turn may cost of tokenizing the whole."""

SENTENCES = (
    "انبار جایی برای نگه داشتن چیزهاست؛ می‌روم تا ببینم چه مانده است. ",
    "अंबार चीज़ें रखने की जगह है, और क्षेत्र में बहुत अनाज बचा है। ",
)

Json = dict[str, object]


def corpus(rng: random.Random) -> str:
    """Paragraphs of all sources and pages, shuffled, every twentieth followed by a foreign sentence."""
    files = sorted([*ROOT.glob("src/**/*.py"), *ROOT.glob("tests/**/*.py"), *ROOT.glob("docs/**/*.md")])
    paragraphs = [part for file in files for part in file.read_text("utf-8").split("\n\n") if part.strip()]
    rng.shuffle(paragraphs)
    for at in range(0, len(paragraphs), 20):
        paragraphs[at] += "\n" + rng.choice(SENTENCES) * rng.randint(1, 4)
    return "\n\n".join(paragraphs)


class Texts:
    """Hands out text of which no part was handed out before."""

    def __init__(self, text: str, raw: Raw) -> None:
        self._text = text
        self._raw = raw
        self._at = 0

    def chars(self, num: int) -> str:
        self._at += num
        assert self._at <= len(self._text), "the corpus is used up"
        return self._text[self._at - num : self._at]

    def tokens(self, num: int) -> str:
        """Text of about so many tokens."""
        probe = self._raw.encode(self._text[self._at : self._at + 4 * num]).ids
        return self.chars(max(1, 4 * num * num // len(probe)))

    def turns(self, num_tokens: int, rng: random.Random) -> Iterator[Json]:
        """A conversation: questions and answers of 20 to 600 tokens, the last a question."""
        role, left = "user", num_tokens
        while left > 0 or role == "assistant":
            size = rng.randint(20, 600)
            yield {"role": role, "content": self.tokens(size)}
            left -= size
            role = "assistant" if role == "user" else "user"


def strange(rng: random.Random, num_bytes: int) -> str:
    """Words that nobody has seen."""
    return " ".join(f"{rng.getrandbits(28):x}" for _ in range(num_bytes // 8))[:num_bytes]


def timed(series: Series, work: Callable[[], object]) -> None:
    before = time.thread_time()
    work()
    series.seconds.append(time.thread_time() - before)


def read(found: Reading | NotReproducible) -> Reading:
    assert isinstance(found, Reading), found
    return found


class Bench:
    """One tokenizer, as the router has it, and all series."""

    def __init__(self, tokenizer: Tokenizer, model: Path, report: Report) -> None:
        self._tokenizer = tokenizer
        self._hf = AutoTokenizer.from_pretrained(str(model), local_files_only=True)
        self._raw = Raw.from_file(str(model / "tokenizer.json"))
        self._report = report
        self._series: dict[str, Series] = {}

    def series(self, name: str) -> Series:
        if name not in self._series:
            self._series[name] = Series(name, [])
            self._report.series.append(self._series[name])
        return self._series[name]

    def conversation(self, messages: list[Json], turn: list[Json]) -> None:
        """The whole at once, then one turn more of what is known."""
        tokenizer = self._tokenizer
        read(tokenizer.read_chat({"messages": messages})).whole()
        body: Json = {"messages": [*messages, *turn]}
        found: list[Reading] = []
        timed(self.series("conversation + a new turn, rendered"), lambda: found.append(self._chat(body)))
        text = self._hf.apply_chat_template(body["messages"], tokenize=False, add_generation_prompt=True)
        timed(self.series("conversation, tokenizers.encode"), lambda: self._encode(text))
        assert found[0].ids.tolist() == self._encode(text), "other ids"

    def _chat(self, body: Json) -> Reading:
        reading = read(self._tokenizer.read_chat(body))
        reading.whole()
        return reading

    def completion(self, name: str, text: str) -> None:
        """A prompt of text beside the tokenizer's own."""
        found: list[Reading] = []
        first, rest = self.series(f"{name}, first piece"), self.series(name)
        theirs = self.series(f"{name}, tokenizers.encode")
        is_theirs_first = len(theirs.seconds) % 2
        if is_theirs_first:
            timed(theirs, lambda: self._encode(text))
        timed(first, lambda: found.append(self._begin(text)))
        timed(rest, found[0].whole)
        rest.seconds[-1] += first.seconds[-1]
        if not is_theirs_first:
            timed(theirs, lambda: self._encode(text))
        assert found[0].ids.tolist() == self._encode(text), "other ids"

    def _begin(self, text: str) -> Reading:
        reading = read(self._tokenizer.read_completion({"prompt": text}))
        reading.take(FIRST_CHARS)
        return reading

    def _encode(self, text: str) -> list[int]:
        return list(self._raw.encode(text, add_special_tokens=False).ids)


def measure(rounds: int) -> Report:
    rng = random.Random(7)
    model = models_dir(os.environ) / DEFAULT_MODEL
    raw, tokenizer = Raw.from_file(str(model / "tokenizer.json")), load_tokenizer(model)
    texts = Texts(corpus(rng), raw)
    setup: dict[str, object] = {
        "model": DEFAULT_MODEL,
        "fresh_bytes": FRESH_BYTES,
        "short_bytes": SHORT_BYTES,
    }
    report = Report("router-tokens", "make bench NAME=router-tokens", setup)
    bench = Bench(tokenizer, model, report)
    messages = list(texts.turns(CONVERSATION_TOKENS, rng))
    document = texts.tokens(CONVERSATION_TOKENS)
    setup["conversation_turns"] = len(messages)
    for _ in range(LEARNT_BYTES // FRESH_BYTES):
        read(tokenizer.read_completion({"prompt": texts.chars(FRESH_BYTES)})).whole()
    for _ in range(rounds):
        answer: Json = {"role": "assistant", "content": texts.tokens(TURN_TOKENS // 2)}
        bench.conversation(messages, [answer, {"role": "user", "content": texts.tokens(TURN_TOKENS // 2)}])
        read(tokenizer.read_completion({"prompt": document})).whole()
        bench.completion("document + a new end", document + texts.tokens(TURN_TOKENS))
        bench.completion("32 KB of new text", texts.chars(FRESH_BYTES))
        bench.completion("32 KB of unknown words", strange(rng, FRESH_BYTES))
        for _ in range(SHORT_TEXTS):
            bench.completion("400 B of new text", texts.chars(SHORT_BYTES))
    conclude(report, {series.name: series for series in report.series})
    return report


def conclude(report: Report, by_name: dict[str, Series]) -> None:
    """Each quantity as a share of the tokenizer's own."""
    names = {"conversation + a new turn, rendered": "conversation, tokenizers.encode"}
    names |= {name.removesuffix(", tokenizers.encode"): name for name in by_name if name.endswith(".encode")}
    names |= {
        f"{name}, first piece": whole for name, whole in names.items() if f"{name}, first piece" in by_name
    }
    for name, whole in names.items():
        if name in by_name:
            report.ratio(f"{name} / its tokenizers.encode", by_name[name], by_name[whole])
    for name in ("32 KB of new text", "32 KB of new text, tokenizers.encode"):
        report.notes.append(f"{name}: {FRESH_BYTES / by_name[name].median / 1e6:.1f} MB a second of one core")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    report = measure(parser.parse_args().rounds)
    report.show()
    print(f"written to {report.write()}")
    share = report.ratios["conversation + a new turn, rendered / its tokenizers.encode"]
    if share > WANTED_SHARE:
        raise SystemExit(f"a new turn costs {share:.0%} of the whole, wanted at most {WANTED_SHARE:.0%}")


if __name__ == "__main__":
    main()
