"""A DNS server on 127.0.0.1, by UDP and TCP, that answers what a test has put into it, or misbehaves."""

import asyncio
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from enum import Enum
from typing import cast

import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import dns.rrset

from tests.ports import free_port

_UDP_BYTES = 512


class DnsFault(Enum):
    """What becomes of every question."""

    SILENT = "silent"
    SERVFAIL = "servfail"
    REFUSED = "refused"
    GARBAGE = "garbage"


class DnsServer(asyncio.DatagramProtocol):
    """`records` has what is answered, by name and type, each as in a zone file; a name without any is not
    there. Names that stand in `faults`, or all if "" does, misbehave."""

    def __init__(self) -> None:
        self.port = 0
        self.records: dict[tuple[str, str], list[str]] = {}
        self.ttl_s = 30
        self.additional: Sequence[tuple[str, str]] = ()
        """Records that are added to every answer."""
        self.faults: dict[str, DnsFault] = {}
        self.asked: list[str] = []
        """Questions, as `A name`."""
        self.num_by_tcp = 0

    def put(self, name: str, kind: str, *values: str) -> None:
        """Give a name these records and no others of the kind."""
        self.records[name, kind] = list(values)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        answer = self._answer(data)
        if answer is None:
            return
        if len(answer) > _UDP_BYTES:
            cut = dns.message.make_response(dns.message.from_wire(data))
            cut.flags |= dns.flags.TC
            answer = cut.to_wire()
        self._transport.sendto(answer, addr)

    async def serve_tcp(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            (length,) = struct.unpack("!H", await reader.readexactly(2))
            answer = self._answer(await reader.readexactly(length))
            self.num_by_tcp += 1
            if answer is not None:
                writer.write(struct.pack("!H", len(answer)) + answer)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def _answer(self, data: bytes) -> bytes | None:
        query = dns.message.from_wire(data)
        question = query.question[0]
        name = question.name.to_text(omit_final_dot=True)
        kind = dns.rdatatype.to_text(question.rdtype)
        self.asked.append(f"{kind} {name}")
        fault = self.faults.get(name, self.faults.get(""))
        if fault is DnsFault.SILENT:
            return None
        if fault is DnsFault.GARBAGE:
            return data[:2] + b"\xff" * 20
        answer = dns.message.make_response(query)
        if fault is not None:
            answer.set_rcode(dns.rcode.from_text(fault.name))
        elif self.records.get((name, kind)):
            answer.answer.append(self._rrset(name, kind))
            answer.additional.extend(self._rrset(*extra) for extra in self.additional)
        elif not any(known == name for known, _ in self.records):
            answer.set_rcode(dns.rcode.NXDOMAIN)
        return answer.to_wire(max_size=65535)

    def _rrset(self, name: str, kind: str) -> dns.rrset.RRset:
        return dns.rrset.from_text(f"{name}.", self.ttl_s, "IN", kind, *self.records[name, kind])


@asynccontextmanager
async def dns_server() -> AsyncIterator[DnsServer]:
    """A server that knows no name yet."""
    server = DnsServer()
    loop = asyncio.get_running_loop()
    server.port = free_port()
    tcp = await asyncio.start_server(server.serve_tcp, "127.0.0.1", server.port)
    place = ("127.0.0.1", server.port)
    transport, _ = await loop.create_datagram_endpoint(lambda: server, local_addr=place)
    try:
        yield server
    finally:
        transport.close()
        tcp.close()
        await tcp.wait_closed()
