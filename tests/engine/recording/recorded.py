"""The recording of one scenario: plain data, written by the engine's interpreter and read by the tests'.

A file is JSON of one `Recording` (gzipped when its name ends in .gz). Block keys are vLLM's block hashes in
hexadecimal, blocks are device block ids, chunks are rows of the host tier.

How to read a step. vLLM's loop is: schedule, compute, update. `Step.pieces` to `Step.flushed` are what
`schedule()` decided, with `blocks` and `free` as it left them; `outputs` to `host` are what was visible after
`update_from_output()`. Requests that arrive, aborts and `clears` take effect before `schedule()`.

Three orders are chance in vLLM, which iterates over sets of strings and bytes there:
- the requests that finished in the same step, when the next step stores the rest of their blocks: the
  recorder pins it to the order in which they finished (that of the running queue);
- the requests aborted by one call, when their blocks are freed: the recorder aborts them one by one, in the
  order of the batch;
- the chunks that one store completes, in its `stored` events on the host tier: compare these as a set.
All else is the same in every run, answers included: nothing in a step depends on the time that it takes.
"""

import gzip
from pathlib import Path

import msgspec


class Settings(msgspec.Struct, frozen=True):
    """The engine as it ran: effective values, read from vLLM after its start."""

    block_size: int
    num_blocks: int
    """As vLLM counts: block 0 holds nothing."""
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    watermark: float
    reserve_full_prompt: bool
    prefix_caching: bool
    host_chunks: int
    """0: no host tier."""
    chunk_blocks: int
    offload_prompt_only: bool


class Asked(msgspec.Struct, frozen=True):
    """A request, and what became of it."""

    id: str
    prompt: tuple[int, ...]
    max_tokens: int
    salt: str | None
    reads_cache: bool
    max_load_tokens: int | None
    max_offload_tokens: int | None
    arrives: int
    """It was added before this step of the batch."""
    aborts: int | None
    """It was aborted before this step, after the arrivals then, whether or not it had ended."""
    answer: tuple[int, ...]
    """Generated tokens, as far as it got."""
    keys: tuple[str, ...]
    """Keys of the full blocks of prompt and answer."""
    device_hit: int
    external_hit: int
    num_preemptions: int


class Piece(msgspec.Struct, frozen=True):
    """Tokens of a request computed in a step."""

    request: str
    num_before: int
    num_new: int


class Transfer(msgspec.Struct, frozen=True):
    """A copy between device and host: `blocks` in order, into or out of `chunks` in order."""

    job: int
    request: str
    keys: tuple[str, ...]
    """Of the chunks, in the order of the prompt."""
    blocks: tuple[int, ...]
    chunks: tuple[int, ...]


class Event(msgspec.Struct, frozen=True):
    """One event of the published batch. `medium` is "GPU" for the device, "CPU" for host RAM."""

    type: str
    """"stored", "removed" or "cleared"."""
    medium: str | None = None
    keys: tuple[str, ...] = ()
    parent: str | None = None
    tokens: tuple[int, ...] = ()


class Output(msgspec.Struct, frozen=True):
    """Tokens that a request got in a step."""

    request: str
    tokens: tuple[int, ...]
    finished: bool


class Step(msgspec.Struct, frozen=True):
    """One turn of vLLM's loop. Steps without pieces finish what is under way: loads, and last stores."""

    pieces: tuple[Piece, ...]
    """In vLLM's order: running requests, then admitted ones."""
    preempted: tuple[str, ...]
    """In the order in which they were preempted."""
    running: tuple[str, ...]
    loading: tuple[str, ...]
    """Waiting for blocks of the host tier, in the order of the queue."""
    waiting: tuple[str, ...]
    """All that wait otherwise, in the order of the queue."""
    num_deferred: int
    """Of both: those that were passed over for a tier's sake."""
    blocks: dict[str, tuple[int, ...]]
    """Of every request that holds some, after scheduling."""
    free: tuple[int, ...]
    """The free queue after scheduling, the next one to be taken first."""
    loads: tuple[Transfer, ...]
    stores: tuple[Transfer, ...]
    """Stores are copied at the start of the next step, those that are `flushed` in this one."""
    flushed: tuple[int, ...]
    """Jobs that must be done before this step computes, as their blocks are given away in it."""
    completed: tuple[int, ...]
    """Jobs that the workers reported done, in order."""
    outputs: tuple[Output, ...]
    events: tuple[Event, ...]
    """Of the published batch; none: nothing was published."""
    free_after: tuple[int, ...]
    cached: tuple[str | None, ...]
    """By block id: the key under which the prefix cache knows it."""
    host: tuple[str, ...]
    """Keys on the host tier, the longest unused first; also those whose store is not complete."""


class Lookups(msgspec.Struct, frozen=True):
    """What vLLM's scheduler has counted since the engine's start, in tokens."""

    device_queries: int = 0
    """`prefix_cache_queries`"""
    device_hits: int = 0
    external_queries: int = 0
    """`external_prefix_cache_queries`"""
    external_hits: int = 0
    hits_by_source: dict[str, int] = {}
    """`prompt_tokens_cached_by_source`, of the tiers below the device that had any."""


class Batch(msgspec.Struct, frozen=True):
    """Requests, and the steps until nothing was left to do. The caches are as the batch before left them."""

    name: str
    clears: bool
    """The device's prefix cache was dropped before the first step (its event comes with that step's)."""
    requests: tuple[Asked, ...]
    steps: tuple[Step, ...]
    lookups: Lookups


class Recording(msgspec.Struct, frozen=True):
    """All batches of one scenario, one after the other in one engine."""

    scenario: str
    settings: Settings
    batches: tuple[Batch, ...]


def save(recording: Recording, path: Path) -> None:
    data = msgspec.json.encode(recording)
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def load(path: Path) -> Recording:
    data = path.read_bytes()
    return msgspec.json.decode(gzip.decompress(data) if path.suffix == ".gz" else data, type=Recording)
