"""`GET /admin/explain` and `GET /admin/explain/{request_id}`, as JSON or text; for this machine only."""

from urllib.parse import parse_qs, unquote

from anbar.adapters.http.message import Answer, Request, json_answer
from anbar.adapters.http.server import Exchange
from anbar.apps.router.explain import ExplainLog
from anbar.apps.router.explain_page import Explanations, LastRequests, brief, explained, utc
from anbar.apps.router.explain_text import text_of, text_of_last
from anbar.apps.router.local import must_be_local
from anbar.core.errors import RequestError

MAX_LISTED = 50
_PREFIX = "/admin/explain/"
_TEXT_TYPE = (b"content-type", b"text/plain; charset=utf-8")
_FORMATS = ("json", "text")


class ExplainEndpoint:
    """Answers from a router's log of choices."""

    def __init__(self, log: ExplainLog) -> None:
        self._log = log

    def latest(self) -> LastRequests:
        """The last requests."""
        return LastRequests(self._log.limit, [brief(kept) for kept in self._log.latest(MAX_LISTED)])

    def explanations(self, request_id: str) -> Explanations:
        """All kept requests that had an id."""
        return Explanations(request_id, [explained(kept) for kept in self._log.find(request_id)])

    def last(self, exchange: Exchange) -> Answer:
        """The last requests."""
        must_be_local(exchange.request)
        return self.shown(exchange.request, self.latest())

    def one(self, exchange: Exchange) -> Answer:
        """One request, or several that had the same id."""
        must_be_local(exchange.request)
        _wants_text(exchange.request)  # a format that is none is wrong whether there is a page or not
        page = self.explanations(self.asked(exchange.request))
        if not page.requests:
            raise self._not_kept(page.request_id)
        return self.shown(exchange.request, page)

    @staticmethod
    def asked(request: Request) -> str:
        """The id that a path names."""
        return unquote(request.path.decode("ascii", "replace"))[len(_PREFIX) :]

    @staticmethod
    def shown(request: Request, page: LastRequests | Explanations) -> Answer:
        """A page in the form that a client wants."""
        if not _wants_text(request):
            return json_answer(200, page)
        text = text_of_last(page) if isinstance(page, LastRequests) else text_of(page)
        return Answer(200, text.encode(), (_TEXT_TYPE,))

    def _not_kept(self, request_id: str) -> RequestError:
        if self._log.limit == 0:
            text = "Nothing is kept: router.explain.keep is 0."
        elif self._log.oldest_s is None:
            text = "This router has routed no request yet."
        else:
            text = (
                f"No request {request_id[:128]!r} is among the last {self._log.limit} that were routed here. "
                f"It is older than {utc(self._log.oldest_s)} (router.explain.keep says how many are kept), "
                "was refused before it was routed, got the answer of an earlier one (Idempotency-Key), or "
                "came to another router; its line in the log tells how it ended."
            )
        return RequestError(text, status=404, code="not_kept")


def _wants_text(request: Request) -> bool:
    """`?format=` decides; without it what the client accepts."""
    query = parse_qs(request.target.partition(b"?")[2].decode("ascii", "replace"), keep_blank_values=True)
    if "format" not in query:
        return (request.header(b"accept") or b"").startswith(b"text/plain")
    asked = query["format"][-1]
    if asked not in _FORMATS:
        raise RequestError(f"format is {asked[:40]!r}; allowed: json, text", param="format")
    return asked == "text"
