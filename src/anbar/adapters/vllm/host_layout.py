"""Where a block's bytes lie on the device and in the host row, and how to move them (numpy only).

One row of the host region holds one chunk, for every worker:
`[tensor 0: block 0 .. block n-1 of the chunk | tensor 1: ... | ...]`
(vLLM 0.32 `v1/kv_offload/cpu/shared_offload_region.py`). A tensor is mostly one layer, so a block is
scattered over as many places as there are layers. Layers that lie at equal distances on both sides form a
*stack*, and one strided copy moves a block of all of them. Measured on one core with 30 layers: 4.8 GB/s
whatever the page size, against 3.7 (48 KiB pages) and 0.6 GB/s (1 KiB pages) with one copy per layer; merging
neighbouring blocks into longer runs gained 5 % more and is not done.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's pages: `device` is (blocks, bytes), `host` (rows, blocks per chunk, bytes), both without
    the padding that a page may end with."""

    device: Bytes
    host: Bytes


@dataclass(frozen=True, slots=True)
class Stack:
    """Equidistant layers: `device` is (layers, blocks, bytes), `host` (rows, slots, layers, bytes), where
    slots are the blocks of a chunk."""

    device: Bytes
    host: Bytes

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block over all layers of the stack."""
        return int(self.device.shape[0] * self.device.shape[2])

    def store(self, block: int, row: int, slot: int) -> None:
        """Copy a device block into its place in a row."""
        np.copyto(self.host[row, slot], self.device[:, block])

    def load(self, block: int, row: int, slot: int) -> None:
        """Copy a block from its place in a row to the device."""
        np.copyto(self.device[:, block], self.host[row, slot])


@dataclass(frozen=True, slots=True)
class Place:
    """One block of a transfer: device block `block` and the `slot`-th block of row `row`."""

    block: int
    row: int
    slot: int


def places(
    blocks: Sequence[int],
    group_sizes: Sequence[int],
    first_indices: Sequence[int],
    rows: Sequence[int],
    blocks_per_chunk: int,
) -> list[list[Place]]:
    """The places of a transfer, per KV cache group.

    `blocks` are device blocks, the groups' one after the other, `group_sizes[g]` of them per group. They are
    neighbours in their request: the first of group g is the request's `first_indices[g]`-th block, which may
    lie inside a chunk. `rows` are the chunks that they touch, again group after group.
    (vLLM 0.32 `v1/kv_offload/base.py`, GPULoadStoreSpec.)
    """
    result: list[list[Place]] = []
    next_block = next_row = 0
    for size, first in zip(group_sizes, first_indices, strict=True):
        skip = first % blocks_per_chunk
        group = [
            Place(
                int(blocks[next_block + i]),
                int(rows[next_row + (skip + i) // blocks_per_chunk]),
                (skip + i) % blocks_per_chunk,
            )
            for i in range(size)
        ]
        result.append(group)
        next_block += size
        next_row += -(-(skip + size) // blocks_per_chunk) if size else 0
    if next_block != len(blocks) or next_row != len(rows):
        raise ValueError(f"{len(blocks)} blocks and {len(rows)} rows, but {next_block} and {next_row} used")
    return result


def stacks(layers: Sequence[Layer]) -> Iterator[Stack]:
    """Cut a group's layers into as few stacks as their addresses allow."""
    start = 0
    while start < len(layers):
        end = start + 1
        while end < len(layers) and _extends(layers[start:end], layers[end]):
            end += 1
        yield _stack(layers[start:end])
        start = end


def _extends(stack: Sequence[Layer], layer: Layer) -> bool:
    last = stack[-1]
    if (layer.device.shape, layer.device.strides) != (last.device.shape, last.device.strides):
        return False
    if (layer.host.shape, layer.host.strides) != (last.host.shape, last.host.strides):
        return False
    return len(stack) == 1 or _distance(last, layer) == _distance(stack[-2], last)


def _distance(one: Layer, other: Layer) -> tuple[int, int]:
    return (other.device.ctypes.data - one.device.ctypes.data, other.host.ctypes.data - one.host.ctypes.data)


def _stack(layers: Sequence[Layer]) -> Stack:
    first, num = layers[0], len(layers)
    device_step, host_step = _distance(first, layers[1]) if num > 1 else (0, 0)
    device = np.lib.stride_tricks.as_strided(
        first.device, (num, *first.device.shape), (device_step, *first.device.strides)
    )
    rows, slots, width = first.host.shape
    row_step, slot_step, byte_step = first.host.strides
    host = np.lib.stride_tricks.as_strided(
        first.host, (rows, slots, num, width), (row_step, slot_step, host_step, byte_step)
    )
    return Stack(device, host)
