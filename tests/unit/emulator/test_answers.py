"""Answers: the same for the same, known in length before they are written, ended by what may end them."""

from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anbar.apps.emulator.answers import Answer, AnswerRules, Finish, Token, Word, Writer
from anbar.apps.emulator.text import ModelText

PROMPT = (5, 6, 7)
TEXT = "grain and आब water, می‌روم grain"


def fixed(text: ModelText, rules: AnswerRules, of: str = TEXT) -> list[Token]:
    """All tokens of an answer that says a given text."""
    answer = Answer(text, Writer(text, 0).fixed(of), rules)
    return [answer.token(index) for index in range(answer.length)]


def shown(tokens: list[Token]) -> str:
    return "".join(token.text for token in tokens)


def test_an_answer_depends_on_prompt_seeds_and_choice(text: ModelText) -> None:
    """Drawn twice it is the same; another prompt, seed of the request, choice or seed of the engine makes
    another."""

    def drawn(
        prompt: tuple[int, ...], seed: int | None, choice: int, engine_seed: int = 0
    ) -> tuple[Word, ...]:
        return tuple(islice(Writer(text, engine_seed).draw(prompt, seed, choice), 40))

    others = [
        drawn((5, 6, 8), None, 0),
        drawn(PROMPT, 1, 0),
        drawn(PROMPT, None, 1),
        drawn(PROMPT, None, 0, 1),
    ]
    assert drawn(PROMPT, None, 0) == drawn(PROMPT, None, 0)
    assert len({drawn(PROMPT, None, 0), *others}) == 5


def test_it_ends_by_itself(text: ModelText) -> None:
    """The end of turn is the last token: it counts, shows nothing and needs no reason."""
    tokens = fixed(text, AnswerRules(max_tokens=500))
    assert shown(tokens) == TEXT
    assert tokens[-1] == Token(text.end_of_turn, "", Finish.STOP)
    assert not any(token.finish for token in tokens[:-1])


def test_it_ends_at_its_limit(text: ModelText) -> None:
    """A character that the limit cuts is not shown."""
    whole = fixed(text, AnswerRules(max_tokens=500))
    for limit in range(1, len(whole)):
        tokens = fixed(text, AnswerRules(max_tokens=limit))
        assert [token.id for token in tokens] == [token.id for token in whole[:limit]]
        assert tokens[-1].finish is Finish.LENGTH
        assert TEXT.startswith(shown(tokens))
        assert "\ufffd" not in shown(tokens)


def test_ignoring_the_end(text: ModelText) -> None:
    """`ignore_eos` goes on until the limit, without an end of turn."""
    tokens = fixed(text, AnswerRules(max_tokens=300, ignore_eos=True))
    assert len(tokens) == 300
    assert text.end_of_turn not in [token.id for token in tokens]


def test_min_tokens_put_the_end_off(text: ModelText) -> None:
    """No end of turn, stop string or stop token ends an answer within its first tokens."""
    length = len(fixed(text, AnswerRules(max_tokens=500)))
    tokens = fixed(text, AnswerRules(max_tokens=500, min_tokens=length + 3))
    assert len(tokens) > length + 3
    assert [token.id for token in tokens].count(text.end_of_turn) == 1
    found = fixed(text, AnswerRules(max_tokens=500, min_tokens=length, stop=("grain",)))
    assert len(found) > length
    assert found[-1].stop_reason == "grain"


@pytest.mark.parametrize("include", [False, True])
def test_stop_strings(text: ModelText, include: bool) -> None:
    """The first that appears ends the answer before it, or behind it."""
    tokens = fixed(text, AnswerRules(max_tokens=500, stop=("water,", "म"), include_stop=include))
    assert shown(tokens) == "grain and आब " + ("water," if include else "")
    assert (tokens[-1].finish, tokens[-1].stop_reason) == (Finish.STOP, "water,")


@pytest.mark.parametrize("include", [False, True])
def test_stop_tokens(text: ModelText, include: bool) -> None:
    """A stop token is the reason by its number, also where the end of turn is ignored."""
    comma = text.words(",")[0]
    rules = AnswerRules(500, ignore_eos=True, include_stop=include, stop_tokens=frozenset({comma}))
    tokens = fixed(text, rules)
    assert (tokens[-1].id, tokens[-1].finish, tokens[-1].stop_reason) == (comma, Finish.STOP, comma)
    assert shown(tokens) == "grain and आब water" + ("," if include else "")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text(alphabet="grain wt,آ", min_size=1, max_size=4), min_size=1, max_size=3),
    st.integers(1, 60),
    st.integers(0, 10),
)
def test_nothing_shown_is_taken_back(text: ModelText, stops: list[str], limit: int, least: int) -> None:
    """Whatever the stop strings: the text is what comes before the first of them, streamed without its
    beginning ever being shown."""
    rules = AnswerRules(limit, min(least, limit), stop=tuple(stops))
    tokens = fixed(text, rules)
    whole = shown(fixed(text, AnswerRules(limit, min(least, limit))))
    assert whole.startswith(shown(tokens))
    assert sum(token.finish is not None for token in tokens) == 1
    if isinstance(tokens[-1].stop_reason, str):
        assert whole[len(shown(tokens)) :].startswith(tokens[-1].stop_reason)
    elif not least:
        assert not any(stop in shown(tokens) for stop in stops)


@settings(max_examples=60)
@given(
    st.integers(0, 50),
    st.lists(st.sampled_from(["ater", "ین ", "ानी", "the"]), max_size=2),
    st.integers(0, 90),
)
def test_words_end_as_tokens_would(text: ModelText, seed: int, stops: list[str], least: int) -> None:
    """An answer is searched for its end word by word. Going through it token by token, with the tokenizer's
    own text, finds the same one, and the same text in front of it."""
    rules = AnswerRules(100, least, ignore_eos=True, stop=tuple(stops))
    answer = Answer(text, Writer(text, 0).draw(PROMPT, seed, 0), rules)
    stream, whole, wanted = text.stream(PROMPT), "", (100, None)
    for number, token in enumerate(answer.first(100)[:100], 1):
        before, whole = len(whole), whole + stream.push(token)
        found = [stop for stop in rules.stop if stop in whole[max(0, before + 1 - len(stop)) :]]
        if found and number > least and len(whole) > before:
            wanted = (number, found[0])
            whole = whole[: whole.index(found[0], max(0, before + 1 - len(found[0])))]
            break
    tokens = [answer.token(index) for index in range(answer.length)]
    assert (answer.length, tokens[-1].stop_reason) == wanted
    assert shown(tokens) == whole


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_what_may_not_end_it_is_sampled_when_there_is_nothing_else(text: ModelText, ignore_eos: bool) -> None:
    """Stop tokens that are the whole vocabulary, or a fixed answer without a word: an answer ends at its
    minimum or its limit all the same, and nobody waits for a token that cannot come."""
    every = frozenset(range(text.vocab_size))
    for words in (Writer(text, 0).draw(PROMPT, None, 0), Writer(text, 0).fixed("")):
        rules = AnswerRules(40, 30, ignore_eos=ignore_eos, stop_tokens=every)
        answer = Answer(text, words, rules)
        last = [answer.token(index) for index in range(answer.length)][-1]
        assert (answer.length, last.finish) == (31, Finish.STOP)
    silent = fixed(text, AnswerRules(40, 3, ignore_eos=ignore_eos), of="")
    assert {token.id for token in silent} == {text.end_of_turn}
    assert len(silent) == (40 if ignore_eos else 4)


def test_tokens_of_blocks_are_drawn_ahead(text: ModelText) -> None:
    """Asking for the first tokens does not disturb the text that is shown later."""
    answer = Answer(text, Writer(text, 0).fixed(TEXT), AnswerRules(40, ignore_eos=True))
    ahead = list(answer.first(30))
    tokens = [answer.token(index) for index in range(answer.length)]
    assert [token.id for token in tokens[:30]] == ahead[:30]
    assert shown(tokens).startswith("grain and आब ")
