"""How a session is told from a request."""

import pytest

from anbar.adapters.http.message import Request
from anbar.apps.router.sessions import session_of

HEADER = b"x-session-id"


def asked(*headers: tuple[bytes, bytes]) -> Request:
    return Request(b"POST", b"/v1/completions", list(headers), b"{}")


def test_header_before_user() -> None:
    """The configured header names the session, and where it is missing or empty the body's `user` does."""
    by_header = session_of(asked((HEADER, b"s")), {"user": "u"}, HEADER)
    by_user = session_of(asked(), {"user": "u"}, HEADER)
    assert by_header == session_of(asked((HEADER, b"s")), {}, HEADER)
    assert by_user == session_of(asked((HEADER, b"")), {"user": "u"}, HEADER)
    assert by_user != by_header
    assert session_of(asked((b"x-other", b"s")), {}, HEADER) == ""
    assert session_of(asked((b"x-other", b"s")), {}, b"x-other") == by_header


@pytest.mark.parametrize("user", [None, "", 7, ["u"]])
def test_no_session(user: object) -> None:
    assert session_of(asked(), {"user": user}, HEADER) == ""


def test_the_value_goes_no_further() -> None:
    """A name, halves of surrogates in it or not, is not to be read from the digest."""
    for user in ("ada@example.org", "\ud800"):
        digest = session_of(asked(), {"user": user}, HEADER)
        assert len(digest) == 32
        assert int(digest, 16)
