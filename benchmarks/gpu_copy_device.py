"""The half of `gpu_copy` that runs in the interpreter with torch for CUDA. It needs nothing but torch; vLLM's
own batched copy is measured where vLLM is installed. Prints a line of JSON that says what it ran on, then one
for each sample.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

MIB = 1024 * 1024
NO_CUDA = 3
"""Exit status when there is nothing to measure; why is the last line on stderr."""


class Case(NamedTuple):
    """One way to move `total_bytes`: chunks, each of which lies in `num_pieces` places on the device, as one
    layer's KV each, and in one on the host. `method`: torch (a copy for each piece, dealt out to streams) or
    vllm (all pieces in one call, as its offloading makes them)."""

    to_device: bool
    method: str
    chunk_bytes: int
    num_pieces: int
    num_streams: int
    total_bytes: int


def cases(methods: tuple[str, ...], total_bytes: int) -> Iterator[Case]:
    """Chunks of 64 KiB to 16 MiB; alone, to learn what one costs, and many one after the other."""
    for to_device in (True, False):
        for method in methods:
            streams = (1, 4) if method == "torch" else (1,)
            for power in range(16, 25):
                for num_pieces in (1, 32):
                    for num_streams in streams:
                        yield Case(to_device, method, 1 << power, num_pieces, num_streams, total_bytes)
                    if 1 << power < total_bytes:
                        yield Case(to_device, method, 1 << power, num_pieces, 1, 1 << power)


def places(case: Case) -> Iterator[tuple[int, int, int]]:
    """(host offset, device offset, bytes) of each piece. On the device a layer is a stretch of its own."""
    num_chunks = case.total_bytes // case.chunk_bytes
    piece = case.chunk_bytes // case.num_pieces
    for chunk in range(num_chunks):
        for layer in range(case.num_pieces):
            yield chunk * case.chunk_bytes + layer * piece, (layer * num_chunks + chunk) * piece, piece


def main() -> int:
    """Measure and print; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--total-mib", type=int, default=256)
    args = parser.parse_args()
    try:
        import torch  # noqa: PLC0415 (tests read this module without it)
    except ImportError:
        print(f"{sys.executable} has no torch", file=sys.stderr)
        return NO_CUDA
    if not torch.cuda.is_available():
        built = torch.version.cuda or "no CUDA"
        print(f"no CUDA device is visible to torch {torch.__version__} (built for {built})", file=sys.stderr)
        return NO_CUDA
    total_bytes = args.total_mib * MIB
    host = torch.empty(total_bytes, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(total_bytes, dtype=torch.uint8, device="cuda")
    batch = vllm_batch()
    about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda}
    print(json.dumps(about), flush=True)
    methods = ("torch", "vllm") if batch is not None else ("torch",)
    works = [(case, prepared(torch, case, host, device, batch)) for case in cases(methods, total_bytes)]
    for number in range(args.rounds + 1):
        for case, work in works:
            torch.cuda.synchronize()
            started_s = time.perf_counter()
            work()
            torch.cuda.synchronize()
            seconds = time.perf_counter() - started_s
            if number:  # the first round makes contexts, streams and the driver's own tables
                print(json.dumps({**case._asdict(), "seconds": seconds}), flush=True)
    return 0


def vllm_batch() -> Callable[..., None] | None:
    """vLLM's batched copy; None where it is not installed for CUDA."""
    try:
        from vllm import _custom_ops  # noqa: PLC0415

        found: Callable[..., None] = _custom_ops.swap_blocks_batch
    except (ImportError, AttributeError):
        return None
    return found


def prepared(
    torch: Any, case: Case, host: Any, device: Any, batch: Callable[..., None] | None
) -> Callable[[], None]:
    """The copies of a case, with all that can be made before."""
    pieces = list(places(case))
    if case.method == "vllm":
        assert batch is not None
        columns = [
            [host.data_ptr() + at for at, _, _ in pieces],
            [device.data_ptr() + at for _, at, _ in pieces],
            [size for _, _, size in pieces],
        ]
        on_host, on_device, sizes = (torch.tensor(column, dtype=torch.int64) for column in columns)
        source, target = (on_host, on_device) if case.to_device else (on_device, on_host)
        return lambda: batch(source, target, sizes, is_src_access_order_any=case.to_device)
    streams = [torch.cuda.Stream() for _ in range(case.num_streams)]
    views = [(host[a : a + size], device[b : b + size]) for a, b, size in pieces]

    def copy() -> None:
        for number, (at_host, at_device) in enumerate(views):
            with torch.cuda.stream(streams[number % len(streams)]):
                if case.to_device:
                    at_device.copy_(at_host, non_blocking=True)
                else:
                    at_host.copy_(at_device, non_blocking=True)

    return copy


if __name__ == "__main__":
    sys.exit(main())
