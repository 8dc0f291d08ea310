"""Workloads that are described rather than recorded. Names of blocks are of no chain, but two prompts have
the same ones exactly as far as they begin alike."""

from collections.abc import Iterator, Sequence

from anbar.plan.workload import Asked, Workload

BLOCK = 128
"""Tokens."""


def documents(
    num: int, num_tokens: int, num_rounds: int, num_answer: int = 100, every_s: float = 1.0
) -> Workload:
    """So many documents asked for in order, again and again: a cyclic scan. One: a fixed prompt."""
    names = [_blocks(document, num_tokens) for document in range(num)]
    turns = range(num * num_rounds)
    return Workload([Asked(t * every_s, num_tokens, num_answer, names[t % num]) for t in turns], BLOCK)


def chats(
    num_users: int, num_rounds: int, history: int, num_answer: int, question: int = 100, every_s: float = 1.0
) -> Workload:
    """Conversations that begin with `history` tokens and grow by a question and an answer each round; users
    take turns."""

    def asked() -> Iterator[Asked]:
        for turn in range(num_users * num_rounds):
            rounds, user = divmod(turn, num_users)
            length = history + rounds * (num_answer + question) + question
            yield Asked(turn * every_s, length, num_answer, _blocks(user, length))

    return Workload(list(asked()), BLOCK)


def tenants(
    shares: Sequence[tuple[int, int]], question: int, num_answer: int = 100, every_s: float = 1.0
) -> Workload:
    """Tenants with a system prompt each, of (tokens, requests); requests of all are mixed evenly, and no two
    have the same question."""
    queue = sorted(
        ((turn + 0.5) / num, tenant, tokens)
        for tenant, (tokens, num) in enumerate(shares)
        for turn in range(num)
    )
    asked = []
    for number, (_, tenant, tokens) in enumerate(queue):
        rest = _blocks(len(shares) + number, question)
        blocks = (*_blocks(tenant, tokens // BLOCK * BLOCK), *rest)
        whole = tokens // BLOCK * BLOCK + question
        asked.append(Asked(number * every_s, whole, num_answer, blocks, scope=f"tenant-{tenant}"))
    return Workload(asked, BLOCK)


def _blocks(what: int, num_tokens: int) -> tuple[int, ...]:
    first = what << 32
    return tuple(range(first, first - -num_tokens // BLOCK))
