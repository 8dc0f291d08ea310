"""Tasks that run beside whoever started them."""

import asyncio

from anbar.apps.tasks import Tasks


async def test_what_has_ended_is_kept_no_more() -> None:
    """One ends by itself, one fails, one is cancelled by whoever got it; the fourth still runs."""
    tasks = Tasks()

    async def fails() -> None:
        raise ValueError

    ended, failed = tasks.start(asyncio.sleep(0)), tasks.start(fails())
    cancelled, running = tasks.start(asyncio.sleep(1000)), tasks.start(asyncio.sleep(1000))
    cancelled.cancel()
    await asyncio.wait((ended, failed, cancelled))
    assert tasks == {running}
    assert isinstance(failed.exception(), ValueError)
    await tasks.give_up()


async def test_giving_up_waits_for_what_runs() -> None:
    """Each is cancelled and may still tidy up, or fail at that; then nothing runs any more."""
    tasks, tidied = Tasks(), list[int]()

    async def work(number: int) -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(0)
            tidied.append(number)
            if number == 1:
                raise ValueError

    for number in range(3):
        tasks.start(work(number))
    await asyncio.sleep(0)
    await tasks.give_up()
    assert (sorted(tidied), len(tasks)) == ([0, 1, 2], 0)
