"""An engine that answers calibration's requests by script, on a real loopback socket."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

METRICS = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
vllm:num_requests_running{engine="0",model_name="m"} 0.0
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
vllm:cache_config_info{block_size="32",enable_prefix_caching="True",engine="0",num_gpu_blocks="700"} 1.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_compute"} 70.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="external_kv_transfer"} 64.0
vllm:kv_offload_load_bytes_total{engine="0",model_name="m"} 3e+06
vllm:kv_offload_load_time_total{engine="0",model_name="m"} 0.25
vllm:kv_offload_store_bytes_total{engine="0",model_name="m"} 4e+06
vllm:kv_offload_store_time_total{engine="0",model_name="m"} 0.5
"""
MODELS = {"data": [{"id": "m", "root": "/models/m", "max_model_len": 4096}]}


def usage(prompt: int, completion: int, cached: int | None) -> dict[str, object]:
    """A usage object; without details when `cached` is None."""
    details = {"cached_tokens": cached} if cached is not None else None
    return {"prompt_tokens": prompt, "completion_tokens": completion, "prompt_tokens_details": details}


def event(**fields: object) -> bytes:
    """One event of a stream."""
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


@dataclass
class ScriptedVllm:
    """Its pages by path, and the bursts that a completion's stream comes in, 20 ms apart."""

    pages: dict[str, tuple[int, bytes]] = field(
        default_factory=lambda: {
            "/v1/models": (200, json.dumps(MODELS).encode()),
            "/version": (200, b'{"version":"0.32.0"}'),
            "/metrics": (200, METRICS.encode()),
            "/tokenize": (200, b'{"tokens":[5,6,7],"count":3,"max_model_len":4096}'),
        }
    )
    bursts: Sequence[bytes] | None = ()
    """None: as many tokens as were asked for, one by one."""
    url: str = ""
    bodies: list[bytes] = field(default_factory=list)
    heads: list[bytes] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until the client closes it."""
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = 0
                for line in head.lower().split(b"\r\n"):
                    if line.startswith(b"content-length:"):
                        length = int(line[15:])
                self.heads.append(head)
                self.bodies.append(await reader.readexactly(length))
                path = head.split(b" ")[1].decode()
                if path == "/v1/completions" and path not in self.pages:
                    await self._stream(writer, json.loads(self.bodies[-1]))
                else:
                    status, body = self.pages.get(path, (404, b"{}"))
                    writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))
                    await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _stream(self, writer: asyncio.StreamWriter, body: dict[str, object]) -> None:
        bursts, pause_s = self.bursts, 0.02
        if bursts is None:
            prompt, count = body["prompt"], body["max_tokens"]
            assert isinstance(prompt, list)
            assert isinstance(count, int)
            bursts = [event(usage=usage(len(prompt), number, 0)) for number in range(1, count + 1)]
            pause_s = 0.001
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for burst in bursts:
            await asyncio.sleep(pause_s)
            writer.write(b"%x\r\n%b\r\n" % (len(burst), burst))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()


@asynccontextmanager
async def scripted_vllm() -> AsyncIterator[ScriptedVllm]:
    """A running one."""
    engine = ScriptedVllm()
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
    engine.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield engine
    finally:
        server.close()
        await asyncio.sleep(0)
