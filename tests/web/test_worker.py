"""The processes that compute: whatever happens to them, there are as many as before."""

from __future__ import annotations

import asyncio
import os

import pytest

pytest.importorskip("fastapi")

from verax.web.computations import PlannedRun, epsilon
from verax.web.worker import Task, TooCostly, WorkerCrashed, WorkerPool

MEMORY = 3 * 2**30
QUICK = Task(epsilon, (PlannedRun("deterministic", 1000, 10, 1, 1.0), 1e-5, 1e-3))
SLOW = Task(epsilon, (PlannedRun("deterministic", 1000, 10, 1, 1.0), 1e-5, 1e-3), slow=True)
COSTLY = Task(epsilon, (PlannedRun("random-allocation", 10**6, 77, 40, 0.5), 1e-5, 1e-3), slow=True)


class Stillborn:
    """A context of multiprocessing whose next few processes end before they have said anything."""

    def __init__(self, context, times):
        self.context, self.times = context, times

    def Pipe(self):  # noqa: N802 - the name in multiprocessing
        return self.context.Pipe()

    def Process(self, target, args, daemon):  # noqa: N802 - the name in multiprocessing
        if self.times > 0:
            self.times -= 1
            return self.context.Process(target=os._exit, args=(9,), daemon=daemon)
        return self.context.Process(target=target, args=args, daemon=daemon)


async def asked(pool, task=QUICK, seconds=600.0):
    parts = []

    async def keep(part):
        parts.append(part)

    await pool.run(task, keep, seconds)
    return parts


def during(what, workers=2, stillborn=0):
    """Run a test in a pool, and fail rather than wait for ever."""

    async def whole():
        pool = WorkerPool(workers, MEMORY)
        pool._context = Stillborn(pool._context, stillborn)
        async with asyncio.timeout(1800):
            await pool.start()
            try:
                await what(pool)
            finally:
                await pool.stop()

    asyncio.run(whole())


def kill_all(pool):
    for worker in list(pool._all):
        worker._process.kill()
        worker._process.join()


async def everybody_is_answered(pool):
    answers = await asyncio.gather(*(asked(pool, SLOW if i % 2 else QUICK) for i in range(8)))
    assert all(parts[-1]["epsilon"] for parts in answers)
    await asyncio.gather(*pool._repairs, return_exceptions=True)
    assert pool._free.qsize() == 2
    assert len(pool._all) == 2


def test_a_process_that_dies_while_it_starts_is_started_again():
    async def what(pool):
        pool._context.times = 1
        with pytest.raises(TooCostly):
            await asked(pool, COSTLY, seconds=0.001)
        await everybody_is_answered(pool)
        assert pool._context.times == 0

    during(what)


def test_no_place_is_lost_however_many_die_while_they_start():
    async def what(pool):
        pool._context.times = 1000
        for _ in range(4):  # every place loses its process, and none can be started
            with pytest.raises((TooCostly, WorkerCrashed)):
                await asked(pool, COSTLY, seconds=0.001)
        kill_all(pool)
        for _ in range(4):
            with pytest.raises(WorkerCrashed):
                await asked(pool)
        pool._context.times = 0
        await everybody_is_answered(pool)

    during(what)


def test_one_that_was_killed_while_idle_is_noticed_before_it_gets_a_task():
    async def what(pool):
        kill_all(pool)
        await everybody_is_answered(pool)

    during(what)


def test_a_pool_begins_with_empty_places_if_some_die_at_once():
    during(everybody_is_answered, stillborn=5)


def test_a_pool_that_cannot_start_anything_says_so():
    with pytest.raises(WorkerCrashed, match="while it started"):
        during(everybody_is_answered, stillborn=1000)


def test_those_who_leave_while_a_process_starts_take_nothing_with_them():
    async def what(pool):
        kill_all(pool)
        waiting = [asyncio.create_task(asked(pool, SLOW)) for _ in range(3)]
        await asyncio.sleep(0)  # they have begun to wait
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await everybody_is_answered(pool)

    during(what)
