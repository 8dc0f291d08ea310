"""The fake engine as a process: `python -m anbar.testing.fake_engine --port 8000 --events ipc:///tmp/e`."""

import argparse
import asyncio
import signal
import tempfile
from pathlib import Path

import uvloop

from anbar.testing.fake_engine import FakeEngine, FakeEngineConfig, Framing, Pace, Tiers, write_tokenizer


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="anbar.testing.fake_engine", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0 picks a free one")
    parser.add_argument("--model", default="fake-model", help="served name")
    parser.add_argument("--tokenizer", type=Path, default=None, help="directory; default: the tiny one")
    parser.add_argument("--events", default="", help="address of the KV events, e.g. ipc:///tmp/events")
    parser.add_argument("--replay", default="", help="address of the replay socket")
    parser.add_argument("--framing", choices=[f.value for f in Framing], default=Framing.MAPS.value)
    parser.add_argument("--api-key", default=None)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--num-blocks", type=int, default=4096)
    parser.add_argument("--max-model-len", type=int, default=8192)
    parser.add_argument("--host-chunks", type=int, default=0, help="room of the host-RAM tier")
    parser.add_argument("--chunk-blocks", type=int, default=1, help="blocks per offloaded chunk")
    parser.add_argument("--prefill-s-per-token", type=float, default=0.0)
    parser.add_argument("--token-s", type=float, default=0.0)
    return parser.parse_args()


async def _serve(options: argparse.Namespace, tokenizer: Path) -> None:
    config = FakeEngineConfig(
        tokenizer=tokenizer,
        models=(options.model,),
        host=options.host,
        port=options.port,
        events=options.events,
        replay=options.replay,
        framing=Framing(options.framing),
        api_key=options.api_key,
        block_size=options.block_size,
        num_blocks=options.num_blocks,
        max_model_len=options.max_model_len,
        tiers=Tiers(options.host_chunks, None, options.chunk_blocks),
        pace=Pace(prefill_s_per_token=options.prefill_s_per_token, token_s=options.token_s),
    )
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    async with FakeEngine(config) as engine:
        print(f"fake engine on {engine.url}", flush=True)  # noqa: T201 - the one line a caller waits for
        await stopped.wait()


def main() -> None:
    """Serve until SIGINT or SIGTERM."""
    options = _arguments()
    if options.tokenizer is not None:
        uvloop.run(_serve(options, options.tokenizer))
        return
    with tempfile.TemporaryDirectory() as directory:
        uvloop.run(_serve(options, write_tokenizer(Path(directory) / "model")))


if __name__ == "__main__":
    main()
