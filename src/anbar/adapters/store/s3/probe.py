"""What a store tries before it says that it is open: everything that it will do, on an object of its own."""

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import obstore
from obstore.store import S3Store as Client

from anbar.adapters.store.s3.client import S3_ERRORS, Place, complaint, why

_CONTENT = b"anbar"


@dataclass(frozen=True, slots=True)
class Health:
    """`refusal`: why the store cannot work as it is configured. `warning`: what may pass. "": all is well."""

    refusal: str = ""
    warning: str = ""


async def probe(client: Client, place: Place) -> Health:
    """Put, get, list and delete an object beside the entries."""
    name = f"{place.prefix}/probe-{secrets.token_hex(8)}"

    async def get() -> None:
        answer = await obstore.get_async(client, name)
        await answer.bytes_async()

    steps: dict[str, Callable[[], Awaitable[object]]] = {
        "putting": lambda: obstore.put_async(client, name, _CONTENT),
        "getting": get,
        "listing": lambda: obstore.list_with_delimiter_async(client, place.prefix),
        "deleting": lambda: obstore.delete_async(client, [name]),
    }
    for step, act in steps.items():
        try:
            await act()
        except S3_ERRORS as error:
            refusal = complaint(error, place)
            if refusal is not None:
                return Health(refusal=f"store {place} cannot be used, {step} an object failed: {refusal}")
            return Health(warning=f"store {place}, {step} an object failed: {why(error)}")
    return Health()
