"""The admin calls, for `GET /admin` and for the reference."""

from collections.abc import Mapping

ADMIN_CALLS: Mapping[str, str] = {
    "GET /admin": "these calls",
    "GET /admin/engines": "what the router believes of each engine, and of its prefix index",
    "POST /admin/engines/{id}/drain": "the engine finishes what it has and gets nothing new; not for pages",
    "POST /admin/engines/{id}/undrain": "the end of that",
    "GET /admin/explain": "the last requests whose choice can be explained, 50 at most; `?format=text` or "
    "`Accept: text/plain` for people",
    "GET /admin/explain/{request_id}": "why a request went where it went, and how it ended; also as text, "
    "or `anbar explain`",
    "GET /admin/config": "which configuration is in force, and why the last one is not, if it was refused",
    "GET /admin/discovery": "what was found where engines are listed elsewhere (`engines[].discover`), when, "
    "and what went wrong last",
}
