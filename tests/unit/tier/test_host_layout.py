"""Where blocks lie: the copies of the host worker against a naive model, without vLLM."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anbar.adapters.vllm.host_layout import Layer, Place, places, stacks

NUM_BLOCKS, NUM_ROWS = 12, 9


def test_places_of_a_transfer_that_starts_inside_a_chunk() -> None:
    """Chunks of four blocks; the transfer begins with the third block of its first chunk."""
    assert places([7, 8, 9], [3], [6], [1, 2], 4) == [[Place(7, 1, 2), Place(8, 1, 3), Place(9, 2, 0)]]


def test_places_of_several_groups() -> None:
    """Three groups, the second without blocks: each continues in the blocks and rows where the last ended."""
    assert places([3, 4, 5, 6], [2, 0, 2], [0, 5, 1], [8, 7, 6], 2) == [
        [Place(3, 8, 0), Place(4, 8, 1)],
        [],
        [Place(5, 7, 1), Place(6, 6, 0)],
    ]


def test_places_must_use_everything() -> None:
    """A row too many, or a block too many, means that the layout was misunderstood."""
    with pytest.raises(ValueError, match="2 rows"):
        places([1], [1], [0], [1, 2], 1)
    with pytest.raises(ValueError, match="2 blocks"):
        places([1, 2], [1], [0], [1], 1)


@given(st.integers(1, 5), st.lists(st.tuples(st.integers(0, 7), st.integers(0, 9)), min_size=1, max_size=3))
def test_places_by_definition(blocks_per_chunk: int, groups: list[tuple[int, int]]) -> None:
    """The i-th block of a group is block `first + i` of its request, so it lies in chunk
    `(first + i) // blocks_per_chunk` at place `(first + i) % blocks_per_chunk`."""
    sizes, firsts = [size for size, _ in groups], [first for _, first in groups]
    expected: list[list[Place]] = []
    rows: list[int] = []
    block = 0
    for group, (size, first) in enumerate(groups):
        chunks = sorted({index // blocks_per_chunk for index in range(first, first + size)})
        row_of = {chunk: 100 * group + chunk for chunk in chunks}
        rows += row_of.values()
        in_group = []
        for index in range(first, first + size):
            in_group.append(Place(block, row_of[index // blocks_per_chunk], index % blocks_per_chunk))
            block += 1
        expected.append(in_group)
    assert places(list(range(block)), sizes, firsts, rows, blocks_per_chunk) == expected


class Memory:
    """Device and host memory with layers at given distances. `gaps` are bytes between a layer's device pages
    and the next layer's; a page ends with `padding` bytes that no copy may touch."""

    def __init__(self, widths: list[int], gaps: list[int], padding: int, blocks_per_chunk: int) -> None:
        rng = np.random.default_rng(1)
        total = sum(NUM_BLOCKS * (width + padding) + gap for width, gap in zip(widths, gaps, strict=True))
        row = blocks_per_chunk * sum(width + padding for width in widths)
        self.device = rng.integers(0, 256, total, dtype=np.uint8)
        self.host = rng.integers(0, 256, (NUM_ROWS, row), dtype=np.uint8)
        self.layers = []
        device_at = host_at = 0
        for width, gap in zip(widths, gaps, strict=True):
            page = width + padding
            pages = self.device[device_at : device_at + NUM_BLOCKS * page].reshape(NUM_BLOCKS, page)
            columns = self.host[:, host_at : host_at + blocks_per_chunk * page]
            chunks = np.lib.stride_tricks.as_strided(
                columns, (NUM_ROWS, blocks_per_chunk, page), (self.host.strides[0], page, 1)
            )
            self.layers.append(Layer(pages[:, :width], chunks[:, :, :width]))
            device_at += NUM_BLOCKS * page + gap
            host_at += blocks_per_chunk * page


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from([8, 8, 8, 24]), min_size=1, max_size=6),
    st.lists(st.sampled_from([0, 0, 0, 16]), min_size=6, max_size=6),
    st.sampled_from([0, 8]),
    st.integers(1, 3),
    st.booleans(),
)
def test_a_copy_moves_the_block_of_every_layer_and_nothing_else(
    widths: list[int], gaps: list[int], padding: int, blocks_per_chunk: int, to_host: bool
) -> None:
    """Layers of equal and different sizes at equal and different distances: one block is moved, in either
    direction, as by a loop over the layers; every other byte stays."""
    memory = Memory(widths, gaps[: len(widths)], padding, blocks_per_chunk)
    block, row, slot = 5, 3, blocks_per_chunk - 1
    expected = Memory(widths, gaps[: len(widths)], padding, blocks_per_chunk)
    for layer in expected.layers:
        if to_host:
            layer.host[row, slot] = layer.device[block]
        else:
            layer.device[block] = layer.host[row, slot]
    num_bytes = 0
    for stack in stacks(memory.layers):
        (stack.store if to_host else stack.load)(block, row, slot)
        num_bytes += stack.bytes_per_block
    assert num_bytes == sum(widths)
    assert np.array_equal(memory.device, expected.device)
    assert np.array_equal(memory.host, expected.host)


def test_equal_layers_are_one_stack() -> None:
    """The usual model: thirty equal layers one after the other need one copy, not thirty."""
    memory = Memory([8] * 30, [0] * 30, 0, 2)
    (stack,) = stacks(memory.layers)
    assert stack.device.shape == (30, NUM_BLOCKS, 8)
    assert stack.host.shape == (NUM_ROWS, 2, 30, 8)


def test_another_size_or_distance_begins_a_new_stack() -> None:
    """A wider layer, and a gap, split the stack."""
    assert len(list(stacks(Memory([8, 8, 24, 8], [0] * 4, 0, 1).layers))) == 3
    assert len(list(stacks(Memory([8, 8, 8, 8], [0, 16, 0, 0], 0, 1).layers))) == 2
