"""The ledger: what a run released, written down before it is released.

A round is recorded, and the record forced to disk, before its noise is drawn; so whatever the
instruction after which the process dies, the ledger knows at least the rounds that anyone can have
seen. See docs/ledger.md.
"""

from __future__ import annotations

import os
import re
import secrets
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, NoReturn

import verax
from verax import checks
from verax.durable import append, refuse_device, sync_directory
from verax.ledger.clip_norms import NormSchedule, schedule_of
from verax.ledger.entries import (
    Event,
    Header,
    LedgerError,
    Log,
    lines_of,
    parse,
    reason_of,
)
from verax.ledger.file import LedgerBusy, LedgerFile, complete, is_unused, locked
from verax.ledger.run import Run
from verax.mechanism import UNITS, Mechanism, Phases

Path = str | os.PathLike[str]


class LeftMechanism(LedgerError):
    """The run did something its mechanism does not describe. The round was not released."""


class RunOver(LedgerError):
    """The run was finished or stopped, and nothing can be added to it."""


class Ledger:
    """An append-only record of one run, with one writer: :meth:`create` or :meth:`open` makes it.

    >>> import tempfile
    >>> from verax import Mechanism, Poisson
    >>> from verax.training import Ledger
    >>> from verax import ledger
    >>> run = Mechanism(Poisson(rate=0.01, steps=3), noise_multiplier=1.0)
    >>> path = tempfile.mkdtemp() + "/run.ledger"
    >>> with Ledger.create(path, run) as book:
    ...     for i in range(len(run.sampler)):
    ...         book.release(i, clip_norm=1.0, noise_multiplier=1.0)  # and only then add the noise
    ...     book.finish()
    >>> ledger.read(path).released
    3
    """

    def __init__(self, path: str, fd: int, log: Log) -> None:
        self.path = path
        self._file, self._log = LedgerFile(path, fd), log
        self._closed = ""  # why nothing can be written, if so
        self._lock, self._writing = threading.RLock(), False
        _OPEN.add(self)

    @classmethod
    def create(
        cls,
        path: Path,
        mechanism: Mechanism | Phases,
        *,
        population: int | None = None,
        insecure_seed: bool = False,
        clip_norms: Sequence[float] | None = None,
        unit: str = "record",
    ) -> Ledger:
        """Begin a run: write down what is going to run.

        Args:
            path: a file that does not exist yet, in a directory that does; or a ledger in which
                nothing was released, as a mistake in the first round leaves one behind: it is
                written anew.
            mechanism: the run, or phases of it.
            population: the number of records, only if it is public; under add-remove it tells
                neighbours apart.
            insecure_seed: whether noise or batches come from a seed somebody chose; the run is then
                not private.
            clip_norms: a norm for every round in place of the mechanism's own, chosen without
                looking at the data.
            unit: who is protected: a "record", or a "client" if what the sampler draws is all data
                of a client.
        """
        if not isinstance(mechanism, Mechanism | Phases):
            raise ValueError(f"mechanism must be a Mechanism or Phases, got {mechanism!r}")
        phases = mechanism if isinstance(mechanism, Phases) else Phases((mechanism,))
        rounds = sum(len(phase.sampler) for phase in phases.mechanisms)
        header = Header(
            phases,
            secrets.token_hex(16),
            datetime.now(UTC).isoformat(timespec="seconds"),
            verax.__version__,
            None if population is None else checks.count("population", population),
            bool(insecure_seed),
            None if clip_norms is None else schedule_of(clip_norms, rounds),
            checks.choice("unit", unit, UNITS),
        )
        line, digest = header.line()
        name = os.fspath(path)
        fd = locked(name, os.O_CREAT)
        try:
            with open(fd, "rb", closefd=False) as file:
                if not is_unused(lines_of(file), name):
                    raise LedgerError(
                        f"path must be new, got {name!r}, which exists: name another file, and "
                        "report both together; to go on with the run in it, give the state that "
                        "was kept of it"
                    )
            os.ftruncate(fd, 0)
            append(fd, line)
            sync_directory(name)
        except BaseException as error:
            os.close(fd)
            if isinstance(error, OSError):
                raise OSError(
                    error.errno, f"the ledger cannot be created ({error.strerror})", name
                ) from error
            raise
        return cls(name, fd, Log(name, header, digest, len(line)))

    @classmethod
    def open(
        cls, path: Path, mechanism: Mechanism | Phases | None = None, *, finished: bool = False
    ) -> Ledger:
        """Resume a run after a crash or a pause: check the whole ledger and record the event.

        The next round is ``released``. If the trainer's own state is older, the rounds in between
        are spent: draw their batches and drop them.

        Args:
            path: the ledger of a run that is not over.
            mechanism: what the caller is going to run; it must be what the ledger declares.
            finished: whether a run that ended with its last declared round will do, too. Nothing
                can be added to it.
        """
        name = os.fspath(path)
        fd = locked(name)
        try:
            with open(fd, "rb", closefd=False) as file:
                log = parse(file, name)
            if mechanism is not None:
                _check_same_mechanism(name, log.header.mechanism, mechanism)
            if log.over and not (
                finished and log.over.kind == "finished" and log.released == log.declared
            ):
                raise _run_over_error(log)
            complete(fd, log)
        except BaseException:
            os.close(fd)
            raise
        ledger = cls(name, fd, log)
        if not ledger.over:
            with ledger._exclusive():
                ledger._record(Event("resumed", log.released))
        return ledger

    @property
    def mechanism(self) -> Phases:
        """What was declared."""
        return self._log.header.mechanism

    @property
    def run(self) -> str:
        """The run's own random name, which is in the ledger's first line."""
        return self._log.header.run

    @property
    def clip_norms(self) -> NormSchedule | None:
        """The declared clip norms and the rounds of each, if they are not the mechanism's own."""
        return self._log.header.clip_norms

    @property
    def insecure_seed(self) -> bool:
        """Whether it was declared that somebody chose the seed of the randomness."""
        return self._log.header.insecure_seed

    @property
    def unit(self) -> str:
        """Who is protected as a whole: a "record" or a "client"."""
        return self._log.header.unit

    @property
    def population(self) -> int | None:
        """The public number of records, if one was declared."""
        return self._log.header.population

    @property
    def released(self) -> int:
        """Rounds that were released or may have been: also the number of the next round."""
        return self._log.released

    @property
    def over(self) -> bool:
        """Whether the run has ended, so that nothing can be added."""
        return self._log.over is not None

    @property
    def head(self) -> str:
        """Hash of the last line: noted elsewhere, it shows :func:`read` a ledger cut short."""
        return self._log.head

    def release(self, round: int, *, clip_norm: float, noise_multiplier: float) -> None:
        """Record a round; when this returns, the record is on disk and the noise may be added.

        Args:
            round: the round's number, from 0. Every round is released, in order, also those with an
                empty batch.
            clip_norm: the norm the gradients were clipped to.
            noise_multiplier: standard deviation of the noise about to be added, divided by
                ``clip_norm``.

        Raises:
            LeftMechanism: this is not the next round of the mechanism. The ledger says so, and the
                run is over.
            OSError: the record could not be written. The round must not be released.
        """
        number = checks.count("round", round, 0)
        with self._exclusive():
            if self._log.over:
                raise _run_over_error(self._log)
            if number != self.released or number >= self._log.declared:
                raise self._left(self._out_of_order(number))
            norm, noise = self._log.declared_round(number)
            for what, used, declared in (
                ("clip norm", clip_norm, norm),
                ("noise multiplier", noise_multiplier, noise),
            ):
                if not used == declared:  # also if it is nan
                    raise self._left(
                        f"round {number} has a {what} of {used!r}, declared is {declared!r}"
                    )
            self._append(*self._log.round_line(), otherwise=f"round {number} must not be released")

    def _out_of_order(self, number: int) -> str:
        declared, released = self._log.declared, self.released
        if number >= declared:
            return f"round {number} is beyond the {declared} declared rounds, which count from 0"
        if number < released:
            return (
                f"round {number} was already released; the next is {released}, and to repeat one "
                "would cost again"
            )
        skipped = f"rounds {released} to {number - 1} were skipped"
        return f"{skipped}; a round with an empty batch is released too"

    def left(self, reason: str, *, private: bool = False) -> LeftMechanism:
        """Stop the run because it left its mechanism, and return the error to raise.

        >>> import tempfile
        >>> from verax import Mechanism, Poisson
        >>> from verax.training import Ledger
        >>> book = Ledger.create(
        ...     tempfile.mkdtemp() + "/run.ledger", Mechanism(Poisson(0.01, 3), 1.0)
        ... )
        >>> raise book.left("round 0 has a batch that the sampler did not draw")
        Traceback (most recent call last):
        ...
        verax.ledger.ledger.LeftMechanism: ... a batch that the sampler did not draw...
        """
        with self._exclusive():
            return self._left(reason, private)

    def _left(self, reason: str, private: bool = False) -> LeftMechanism:
        words = reason_of(reason)
        noted = "the ledger says so and the run is over"
        try:
            self._stop(reason, private)
        except (OSError, LedgerError) as error:
            noted = f"and the ledger could not be told: {error}"
        return LeftMechanism(f"{self.path}: the run left its mechanism: {words} ({noted})")

    def stop(self, reason: str, *, private: bool = False) -> None:
        """End the run early, for a reason that may be published.

        Args:
            reason: what happened, in words that say nothing about private data.
            private: whether it was seen in the private data, such as gradients that are not finite.
                That the run stopped is then itself a release without noise, and the statement says
                that it is not covered.
        """
        with self._exclusive():
            self._stop(reason, private)

    def _stop(self, reason: str, private: bool) -> None:
        self._record(Event("stopped", self.released, reason_of(reason), bool(private)))

    def finish(self) -> None:
        """End the run as planned, whether or not all declared rounds were needed."""
        with self._exclusive():
            self._record(Event("finished", self.released))

    def close(self) -> None:
        """Let others open the ledger. The run is not over by that."""
        with self._lock:
            self._close("it was closed")

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a ledger belongs to the process that opened it and cannot be copied or sent to another"
        )

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Exclude other threads, and calls of this thread that interrupt one (signal handlers)."""
        with self._lock:
            if self._writing:
                raise LedgerBusy(
                    f"{self.path} is in the middle of another entry of this thread; nothing was "
                    "recorded"
                )
            self._writing = True
            try:
                yield
            finally:
                self._writing = False

    def _close(self, why: str) -> None:
        self._closed = self._closed or why
        self._file.close()

    def _record(self, event: Event) -> None:
        if self._log.over:
            raise _run_over_error(self._log)
        self._append(*self._log.event_line(event), event)

    def _append(
        self,
        line: bytes,
        digest: str,
        event: Event | None = None,
        otherwise: str = "nothing was recorded",
    ) -> None:
        """Write a line and force it to disk; on failure close, as the file must be read again."""
        if self._closed:
            raise LedgerError(f"{self.path} cannot be written: {self._closed}; {otherwise}")
        done = False
        try:
            self._file.append(line, digest, self._log, otherwise)
            self._log.add(line, digest, event)
            done = True
        except OSError as error:
            cause = f"the ledger cannot be written ({error.strerror})"
            why = f"{otherwise}: {cause}; Ledger.open goes on once it can"
            raise OSError(error.errno, why, self.path) from error
        finally:
            if not done:
                self._close("an earlier write failed or was interrupted, so open it again")


def read(path: Path, head: str | None = None) -> Run:
    """Check a ledger and return its run, which may still be running.

    Args:
        path: the ledger.
        head: a hash noted earlier; the ledger must contain the line that had it.
    """
    name = os.fspath(path)
    if head is not None and not re.fullmatch("[0-9a-f]{64}", str(head)):
        raise ValueError(f"head must be a hash of 64 hexadecimal digits, got {head!r}")
    refuse_device(name)
    try:
        with open(name, "rb") as file:
            log = parse(file, name, head)
    except OSError as error:
        raise LedgerError(
            f"path must be a ledger that can be read, got {name!r}: {error.strerror}"
        ) from error
    return Run.of(log)


def _check_same_mechanism(name: str, declared: Phases, mechanism: Mechanism | Phases) -> None:
    """Refuse to resume a run as another one."""
    phases: Sequence[Any] = mechanism.mechanisms if isinstance(mechanism, Phases) else (mechanism,)
    if tuple(phases) != declared.mechanisms:
        raise LeftMechanism(
            f"{name} declares {'; then '.join(map(repr, declared.mechanisms))}, "
            f"got {'; then '.join(map(repr, phases))}; resume with what was declared, or begin "
            "another ledger"
        )


def _run_over_error(log: Log) -> RunOver:
    over, how = log.over, ""
    if over:
        how = f"{over.kind} after {over.released} rounds{': ' * bool(over.reason)}{over.reason}"
    return RunOver(
        f"{log.name}: the run is over ({how}); begin another ledger, and report both together"
    )


_OPEN: weakref.WeakSet[Ledger] = weakref.WeakSet()


def _close_in_forked_child() -> None:
    """Close ledgers in a forked child: it must neither write nor hold the lock of its parent."""
    for ledger in list(_OPEN):
        # Another thread of the parent may have held the lock.
        ledger._lock, ledger._writing = threading.RLock(), False
        with suppress(OSError):
            ledger._close("it belongs to the process that opened it, of which this one is a fork")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_forked_child)
