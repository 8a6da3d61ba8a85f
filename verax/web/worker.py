"""Worker processes that compute, each one task at a time, and none for long.

A costly request cannot hold up the server: its process is ended at its deadline, or soon after
nobody waits for the answer any more, and another takes its place. The system limits how much memory
it may use.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

Emit = Callable[[Any], Awaitable[None]]
PART, END, REFUSED = "part", "end", "refused"
# Processes that may die while they start before an error is raised, and the time one may take.
_START_ATTEMPTS, _START_SECONDS = 3, 60.0
# Seconds in which a process may finish what nobody waits for, if it is slow or not.
_GRACE = {True: 1.0, False: 3.0}
# What a process loads before it is ready: all that a task may be, so that nobody waits for it.
_TASKS = "verax.web.ledgers"
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class RequestRefused(ValueError):  # noqa: N818 - reads as a verdict
    """A request that cannot be answered, with the reason in words."""


class TooCostly(RequestRefused):
    """A request that takes longer than one may."""


class ServerBusy(Exception):  # noqa: N818 - reads as a state
    """Too many requests are being answered."""


class WorkerCrashed(Exception):  # noqa: N818 - reads as a state
    """A worker process ended unexpectedly; its own words are on standard error."""


@dataclass(frozen=True)
class Task:
    """A generator of ``verax.web.computations`` or ``verax.web.ledgers``, with its arguments.

    A slow one may take more than a moment. One process is always kept free of these.
    """

    function: Callable[..., Iterable[Any]]
    arguments: tuple[Any, ...]
    slow: bool = False


def run_tasks(connection: Connection, memory: int) -> None:
    """Run tasks from the connection until its other end goes away: the main of a worker process."""
    import_module(_TASKS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which then ends us
    if sys.platform != "win32":
        import resource

        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    with suppress(EOFError, BrokenPipeError):
        connection.send((END, ""))  # ready
        while True:
            function, arguments = connection.recv()
            try:
                for part in function(*arguments):
                    connection.send((PART, part))
                answer: tuple[str, str] = (END, "")
            except MemoryError:
                answer = (
                    REFUSED,
                    "this takes more memory than one request may use; ask for something smaller",
                )
            except (ValueError, ArithmeticError) as error:
                answer = (REFUSED, str(error))
            connection.send(answer)


class _Worker:
    """A process and our end of its pipe, which is read by a thread."""

    def __init__(self, context: Any, memory: int, threads: ThreadPoolExecutor) -> None:
        self._connection, other = context.Pipe()
        self._threads, self._reading = threads, list[Future[Any]]()
        self._process = context.Process(target=run_tasks, args=(other, memory), daemon=True)
        try:
            with other:
                self._process.start()
            if not self._connection.poll(_START_SECONDS):
                raise EOFError
            # it has loaded what it needs: nobody who gets it waits for that
            self._connection.recv()
        except (EOFError, OSError):
            self.kill()
            raise WorkerCrashed("a worker process ended while it started") from None

    def is_alive(self) -> bool:
        """Whether the process runs; it may have been killed from outside."""
        return bool(self._process.is_alive())

    def send(self, task: Task) -> None:
        self._reading = []
        self._connection.send((task.function, task.arguments))

    async def receive(self) -> tuple[str, Any]:
        self._reading = [self._threads.submit(self._connection.recv)]
        kind, value = await asyncio.wrap_future(self._reading[0])
        return kind, value

    def finish(self, seconds: float) -> bool:
        """Drop the rest of the answer; whether it ended within this time."""
        deadline = time.monotonic() + seconds
        try:
            while True:
                if not self._reading or self._reading[0].cancelled():  # before its thread began
                    self._reading = [self._threads.submit(self._connection.recv)]
                kind, _ = self._reading[0].result(max(deadline - time.monotonic(), 0.0))
                if kind != PART:
                    return True
                self._reading = []
        except (TimeoutError, EOFError, OSError):
            return False

    def kill(self) -> None:
        if self._process.pid is not None:  # it may have died before it had one
            self._process.kill()
            self._process.join()
        # the thread sees the end of the pipe; only then may its number be used anew
        wait(self._reading)
        self._connection.close()


class WorkerPool:
    """The worker processes; :meth:`run` gives one a task and passes on the parts of its answer.

    There are always as many places as there were at first. A place whose process has died is empty,
    and the next task to take it starts another; so no death, however early, makes the pool smaller.
    """

    def __init__(self, workers: int, memory: int) -> None:
        for variable in _THREADS:  # processes are what runs side by side
            os.environ.setdefault(variable, "1")
        methods = multiprocessing.get_all_start_methods()
        method = "forkserver" if "forkserver" in methods else "spawn"
        self._context: Any = multiprocessing.get_context(method)
        if hasattr(self._context, "set_forkserver_preload"):  # so that a new one is quick
            self._context.set_forkserver_preload([_TASKS, "verax.cli"])
        self._memory, self._count = memory, workers
        self._threads = ThreadPoolExecutor(4 * workers, thread_name_prefix="verax-worker")
        # the last one used has warm caches; None is a place without a process
        self._free: asyncio.Queue[_Worker | None] = asyncio.LifoQueue()
        self._slow = asyncio.Semaphore(workers - 1)
        self._all: set[_Worker] = set()
        self._repairs: set[asyncio.Task[None]] = set()
        self._stopped = False

    async def start(self) -> None:
        """Start the processes; ``WorkerCrashed`` if they cannot be started at all."""
        started = await asyncio.gather(
            *(self._new() for _ in range(self._count)), return_exceptions=True
        )
        failures = [one for one in started if isinstance(one, BaseException)]
        others = [one for one in failures if not isinstance(one, WorkerCrashed)]
        if others or len(failures) == self._count:
            await self.stop()
            raise (others or failures)[0]
        # empty places are taken last
        for worker in sorted(started, key=lambda one: isinstance(one, _Worker)):
            self._free.put_nowait(worker if isinstance(worker, _Worker) else None)

    async def stop(self) -> None:
        """Kill the processes, whatever they compute."""
        self._stopped = True
        for repair in list(self._repairs):
            repair.cancel()
        for worker in list(self._all):
            self._all.discard(worker)
            worker.kill()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def run(self, task: Task, emit: Emit, seconds: float) -> None:
        """Compute, and pass every part of the answer on as it comes, until this is cancelled."""
        worker = await self._take(task)
        grace: float | None = _GRACE[task.slow]  # None if it is done already
        try:
            async with asyncio.timeout(seconds):
                await self._pass_on(worker, task, emit)
            grace = None
        except TimeoutError:
            grace = 0.0
            raise TooCostly(
                f"this takes more than {seconds:g} seconds, the most that one computation may "
                "take; ask for something smaller, or use the command line, which waits"
            ) from None
        except RequestRefused:
            grace = None
            raise
        except (EOFError, OSError):
            grace = 0.0
            raise WorkerCrashed from None
        finally:
            self._give_back(worker, task, grace)

    async def _take(self, task: Task) -> _Worker:
        """A process that is alive, once there is one."""
        if task.slow:
            await self._slow.acquire()
        try:
            while True:
                worker = await self._free.get()
                if worker is not None and worker.is_alive():
                    return worker
                # it goes on if nobody waits any more
                await asyncio.shield(self._start_repair(worker, 0.0))
        except (asyncio.CancelledError, WorkerCrashed):
            if task.slow:
                self._slow.release()
            raise

    def _give_back(self, worker: _Worker, task: Task, grace: float | None) -> None:
        """Free its place at once if it is done; else it has a moment to finish, or is replaced."""

        def released(_: object = None) -> None:
            if task.slow:
                self._slow.release()

        if grace is None:
            self._free.put_nowait(worker)
            released()
        elif not self._stopped:
            self._start_repair(worker, grace).add_done_callback(released)

    def _start_repair(self, worker: _Worker | None, grace: float) -> asyncio.Task[None]:
        """Start to repair a place; the repair goes on if nobody waits for it."""

        def done(repair: asyncio.Task[None]) -> None:
            self._repairs.discard(repair)
            if not repair.cancelled():
                repair.exception()  # retrieved: the next to take the place tries again

        repair = asyncio.get_running_loop().create_task(self._repair(worker, grace))
        self._repairs.add(repair)
        repair.add_done_callback(done)
        return repair

    async def _repair(self, worker: _Worker | None, grace: float) -> None:
        """Give a place a live process, and the place back; WorkerCrashed if none can be started."""
        loop = asyncio.get_running_loop()
        repaired: _Worker | None = None
        try:
            if worker is not None:
                if grace and await loop.run_in_executor(self._threads, worker.finish, grace):
                    repaired = worker
                    return
                self._all.discard(worker)
                await loop.run_in_executor(self._threads, worker.kill)
            repaired = await self._new()
        finally:
            self._free.put_nowait(repaired)

    async def _pass_on(self, worker: _Worker, task: Task, emit: Emit) -> None:
        worker.send(task)
        while True:
            kind, value = await worker.receive()
            if kind == END:
                return
            if kind == REFUSED:
                raise RequestRefused(value)
            await emit(value)

    async def _new(self) -> _Worker:
        loop = asyncio.get_running_loop()
        for attempts_left in reversed(range(_START_ATTEMPTS)):
            try:
                worker = await loop.run_in_executor(
                    self._threads, _Worker, self._context, self._memory, self._threads
                )
                break
            except WorkerCrashed:
                if not attempts_left:
                    raise
        self._all.add(worker)
        return worker
