"""Whose request it is, and what it carries to the engine for that: `cache_salt`, and the scope for the shared
tier. Both are the router's: of what a client has sent of either only what keeps it apart goes on.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from anbar.adapters.http.message import Request
from anbar.adapters.http.openai import ApiRequest
from anbar.adapters.http.rewrite import with_members, with_new_members
from anbar.adapters.keys.files import KeyFiles
from anbar.apps.router.split_bodies import PARAMS
from anbar.config.tenants import DEFAULT_SCOPE, ScopeConfig, TenantsConfig
from anbar.core.errors import RequestError
from anbar.core.salt import cache_salt
from anbar.tier.store import Scope
from anbar.tier.wish import Storing

SALT = "cache_salt"
_OF_ENCODERS = "ec_transfer_params"
_encode = msgspec.json.encode


class Membership(msgspec.Struct, frozen=True):
    """What requests of one tenant get."""

    tenant: bytes
    """Its name; b"" of those that have none."""
    scope: Scope
    salt: str
    own_salt: "OwnSalt"
    wish: Mapping[str, object]
    """`kv_transfer_params.anbar`."""
    fields: Mapping[str, object]
    """What is put into the body."""
    members: bytes
    """The same, as it stands in the body."""

    def put_into(self, request: Request, api: ApiRequest) -> tuple[Request, ApiRequest]:
        """The request as it goes on: salt and scope in place, and not a byte besides."""
        if api.body.keys().isdisjoint(_THEIRS):
            body = with_new_members(request.body, self.members)
            fields, salt, wish = self.fields, self.salt, self.wish
        else:
            wish = self._wish_with(api.body.get(PARAMS))
            salt = self.salt if api.cache_salt is None else self.own_salt(api.cache_salt)
            fields = {SALT: salt, PARAMS: {"anbar": wish}}
            if api.body.get(_OF_ENCODERS) is not None:
                fields[_OF_ENCODERS] = None
            encoded = {name: _encode(value) for name, value in fields.items()}
            body = with_members(request.body, api.body, encoded)
        api = replace(api, body={**api.body, **fields}, cache_salt=salt, wish=wish)
        return replace(request, body=body), api

    def _wish_with(self, theirs: object) -> Mapping[str, object]:
        """A client that may send transfer parameters may say whether it wants to be stored, unless its scope
        never is; where its blocks are to come from, and whose they are, is not for it to say."""
        anbar = theirs.get("anbar") if isinstance(theirs, dict) else None
        store = anbar.get("store") if isinstance(anbar, dict) else None
        if store not in _STORING or self.wish["store"] == Storing.NEVER.value:
            return self.wish
        return {**self.wish, "store": store}


_THEIRS = frozenset((SALT, PARAMS, _OF_ENCODERS))
_STORING = tuple(storing.value for storing in Storing)


@dataclass(frozen=True, slots=True)
class OwnSalt:
    """Makes the salt of a request that brings one of its own: nothing is shared between two of these, within
    the scope either."""

    secret: bytes
    scope: Scope
    epoch: bytes

    def __call__(self, own: str) -> str:
        return cache_salt(self.secret, self.scope, self.epoch, own)


class Table:
    """The tenants of a configuration, with their salts as of one moment. Reads files when it is made, and
    blocks for that; raises KeyFileError."""

    def __init__(self, config: TenantsConfig, files: KeyFiles) -> None:
        secret = files.secret()
        of_scope = {
            scope: _membership(scope, settings, OwnSalt(secret, scope, files.epoch(scope)))
            for scope, settings in config.known_scopes().items()
        }
        self._header = None if config.header is None else config.header.encode()
        self._of = {
            name.encode(): replace(of_scope[tenant.group or name], tenant=name.encode())
            for name, tenant in config.by_name.items()
        }
        self._others = of_scope.get(DEFAULT_SCOPE)

    def of(self, request: Request) -> Membership:
        """Whose request it is. Raises RequestError (403) when that is not known and has to be."""
        found = self._others
        if self._header is not None:
            # API keys will be another way to a name.
            names = [value for name, value in request.headers if name == self._header]
            if len(names) > 1:
                raise _refused("This request names more than one tenant.", "ambiguous_tenant")
            if names:
                found = self._of.get(names[0], found)
        if found is None:
            raise _refused("This request names no tenant that is known here.", "unknown_tenant")
        return found


@dataclass(slots=True)
class Tenancy:
    """What requests look at; whoever watches the files puts another table there."""

    table: Table | None = None
    """None: there are no tenants."""


def _membership(scope: Scope, settings: ScopeConfig, own_salt: OwnSalt) -> Membership:
    salt = own_salt("")
    wish: dict[str, object] = {"v": 1, "scope": scope, "store": settings.store.value}
    if settings.encrypt:  # engines that were started before do not know
        wish["sealed"] = True
    fields: dict[str, object] = {SALT: salt, PARAMS: {"anbar": wish}}
    return Membership(b"", scope, salt, own_salt, wish, fields, _encode(fields)[1:-1])


def _refused(text: str, code: str) -> RequestError:
    return RequestError(text, status=403, code=code)
