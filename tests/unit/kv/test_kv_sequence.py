"""Telling the next batch from repetitions, gaps and another life."""

from anbar.adapters.vllm.kv_sequence import SequenceLog, Verdict
from anbar.adapters.vllm.kv_wire import Message


def log_of(*seqs: int) -> SequenceLog:
    log = SequenceLog()
    for seq in seqs:
        log.accept(Message(seq, b"%d" % seq))
    return log


def test_verdicts() -> None:
    """Each verdict for a log that knows 3, 4 and 5."""
    log = log_of(3, 4, 5)
    expected = {
        Message(6, b"x"): Verdict.NEXT,
        Message(8, b"x"): Verdict.GAP,
        Message(4, b"4"): Verdict.DUPLICATE,
        Message(4, b"x"): Verdict.RESTART,
        Message(2, b"2"): Verdict.STALE,
        Message(-1, b""): Verdict.STALE,
    }
    assert {message: log.judge(message) for message in expected} == expected
    assert log.next == 6


def test_a_new_log_and_a_reset_one_expect_the_first() -> None:
    """Nothing is known of any batch: 0 is next, others are behind a gap."""
    log = log_of(0, 1)
    log.reset()
    for fresh in (SequenceLog(), log):
        assert fresh.judge(Message(0, b"")) is Verdict.NEXT
        assert fresh.judge(Message(1, b"1")) is Verdict.GAP


def test_memory_is_bounded() -> None:
    """Only the last fingerprints are kept; older batches are of no use any more."""
    log = log_of(*range(SequenceLog.WINDOW + 10))
    assert log.judge(Message(9, b"9")) is Verdict.STALE
    assert log.judge(Message(10, b"10")) is Verdict.DUPLICATE
