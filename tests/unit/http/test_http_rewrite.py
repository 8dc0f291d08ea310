"""Editing JSON in place: the one value changes, and no other byte does."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anbar.adapters.http.rewrite import member_span, with_member, with_members

NAME = "stream_options"
SPACES = st.sampled_from(["", " ", "\n", "\r\n\t", "  "])
STRINGS = st.text(max_size=8) | st.sampled_from([NAME, f'"{NAME}":', '\\"', "}", "],{", "آب अंबार 🜚"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | STRINGS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(STRINGS, inner, max_size=3),
    max_leaves=8,
)
NUMBERS = st.sampled_from(["1" + "0" * 400, "-0.0e+5", "1E400", "12345678901234567890.123"])


def escaped(text: str) -> str:
    """A JSON string of nothing but escapes."""
    units = text.encode("utf-16-be")
    return '"' + "".join(f"\\u{units[i] << 8 | units[i + 1]:04x}" for i in range(0, len(units), 2)) + '"'


@st.composite
def written(draw: st.DrawFn, value: object) -> str:
    """`value` as some client would write it."""
    plain = json.dumps(value, ensure_ascii=draw(st.booleans()))
    if isinstance(value, str):
        return escaped(value) if draw(st.booleans()) else plain
    return draw(NUMBERS) if isinstance(value, int) and draw(st.booleans()) else plain


@st.composite
def objects(draw: st.DrawFn) -> tuple[str, list[str], list[tuple[str, str]]]:
    """An object with odd spacing, and possibly several members with one name: its end, the text before each
    value, and each member's name and value as written."""
    names = draw(st.lists(STRINGS | st.just(NAME), max_size=6))
    before, members = [], []
    for place, name in enumerate(names):
        spaces = [draw(SPACES) for _ in range(4)]
        comma = "," if place else draw(SPACES) + "{"
        before.append(spaces[0] + comma + spaces[1] + draw(written(name)) + spaces[2] + ":" + spaces[3])
        members.append((name, draw(written(draw(VALUES)))))
    end = draw(SPACES) + "}" + draw(SPACES)
    return (end if names else draw(SPACES) + "{" + end), before, members


@given(objects(), VALUES)
def test_the_one_value_changes_and_no_byte_besides(
    made: tuple[str, list[str], list[tuple[str, str]]], value: object
) -> None:
    """Whatever else the object has: a member of that name gets the value, the last one if there are
    several; an object without one gets it as its first member."""
    end, before, members = made
    new = json.dumps(value, ensure_ascii=False)
    text = "".join(head + tail for head, (_, tail) in zip(before, members, strict=True)) + end
    places = [place for place, (name, _) in enumerate(members) if name == NAME]
    if places:
        members[places[-1]] = NAME, new
        expected = "".join(head + tail for head, (_, tail) in zip(before, members, strict=True)) + end
    else:
        head, brace, rest = text.partition("{")
        expected = head + brace + f'"{NAME}":{new}' + ("," if members else "") + rest
    edited = with_member(text.encode(), NAME, new.encode())
    assert edited.decode() == expected
    assert json.loads(edited)[NAME] == value


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b'{"a": {"x": 1}, "x": [2, "]"]}', b'[2, "]"]'),
        (b'{"x": 1, "x": null}', b"null"),
        (b'{"\\u0078":"\\"x\\":1"}', b'"\\"x\\":1"'),
        (b' {"x" : {} } ', b"{}"),
        (b'{"y": "x", "z": ["x", {"x": 3}]}', None),
        (b"{}", None),
    ],
)
def test_where_a_value_is(body: bytes, value: bytes | None) -> None:
    """Members of the object itself count, not those of what is in it, nor strings that read like them."""
    span = member_span(body, "x")
    assert (None if span is None else body[slice(*span)]) == value


@given(objects(), st.lists(STRINGS, max_size=3, unique=True), VALUES)
def test_several_members_at_once(
    made: tuple[str, list[str], list[tuple[str, str]]], others: list[str], value: object
) -> None:
    """All of them are put where each would be, whether the object has it, has it twice, or has it not."""
    end, before, members = made
    text = "".join(head + tail for head, (_, tail) in zip(before, members, strict=True)) + end
    new = json.dumps(value).encode()
    expected = text.encode()
    for name in (names := dict.fromkeys([NAME, *others], new)):
        expected = with_member(expected, name, new)
    assert with_members(text.encode(), json.loads(text), names) == expected
