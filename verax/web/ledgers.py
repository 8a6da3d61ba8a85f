"""Ledgers in a browser: what they prove, how far a run is, and the statement to download.

Of a run in progress its ledger is shown, and what a log says that the run itself published. Losses,
norms of gradients and fractions clipped are functions of private data: they are in a file of their
own, if the run was asked for it, and shown if the server was.
"""

from __future__ import annotations

import io
import json
import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from verax.checks import NoGuarantee
from verax.display import visible
from verax.ledger.entries import LedgerError, parse
from verax.ledger.run import Run, at_most, compose, if_independent
from verax.mechanism import Batch, Individual, Mechanism, Mixed
from verax.privacy.guarantee import Bracket, Guarantee
from verax.reporting.statement import Statement
from verax.web.tasks import Part, number, plain

SUFFIX, LOG_SUFFIX, PRIVATE_SUFFIX = ".ledger", ".log", ".private"
MOST_FILES = 500
MOST_LOGGED = 2_000
LARGEST_LOG = 2**22
MOST_SERIES = 12
LARGEST_LOGGED = 1e300
_COUNTS = 12  # numbers of rounds at which epsilon is read for the figure
_RTOL = 1e-2
QUIET_SECONDS = 120.0
"""After so long without a line, and without a process that could write one, a run counts as broken
off.
"""
LOCKS = Path("/proc/locks")

Source = tuple[str, bytes | None, str]
"""Name to call it by, its bytes if it was sent to us, the file it is in if not."""


def find(folder: Path) -> dict[str, float]:
    """Ledgers under a folder, without links that lead out of it, and when each was written."""
    root = folder.resolve()
    found: dict[str, float] = {}
    for place, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            path = Path(place, name)
            if name.endswith(SUFFIX) and path.resolve().is_relative_to(root):
                with suppress(OSError):  # it may be gone by now
                    found[path.relative_to(root).as_posix()] = path.stat().st_mtime
        if len(found) >= MOST_FILES:
            break
    return {name: found[name] for name in sorted(found)[:MOST_FILES]}


def inside(folder: Path, name: str) -> Path | None:
    """The file of this name, if it is a ledger in the folder."""
    root = folder.resolve()
    try:
        path = (root / name).resolve()
        good = path.is_relative_to(root) and path.suffix == SUFFIX and path.is_file()
    except (OSError, ValueError):  # a name that no file can have
        return None
    return path if good else None


def opened(source: Source) -> Run:
    """Check a ledger."""
    name, content, path = source
    if content is not None:
        return Run.of(parse(io.BytesIO(content), name))
    try:
        with open(path, "rb") as file:
            return Run.of(parse(file, name))
    except OSError as error:
        raise LedgerError(f"{name} cannot be read: {error.strerror}") from error


def summary(source: Source, delta: float, group: int, diagnostics: bool = False) -> Iterator[Part]:
    """What a ledger proves; then its epsilon against the number of rounds, for a figure."""
    run = opened(source)
    about = _about(run) | {
        "delta": delta,
        "group": group,
        "log": _log(source, LOG_SUFFIX),
        "diagnostics": _log(source, PRIVATE_SUFFIX) if diagnostics else None,
    }
    try:
        declared = run.guarantee(group).epsilon(delta)
        independent = if_independent([run], group)
        spent = declared if independent is None else at_most(independent.epsilon(delta), declared)
    except NoGuarantee as error:
        yield about | {
            "epsilon": None,
            "spent": None,
            "why_not": str(error),
            "points": [],
            "provisional": False,
        }
        return
    about |= {"epsilon": plain(declared), "spent": plain(spent), "why_not": None}
    yield about | {"points": [], "provisional": True}
    yield about | {"points": _points(run, delta, group, declared), "provisional": False}


def together(sources: Sequence[Source], delta: float, group: int) -> Iterator[Part]:
    """What ledgers of runs on the same data prove together, and each on its own."""
    runs = [opened(source) for source in sources]
    declared = compose(runs, group)
    independent = if_independent(runs, group)

    def bracket(of: Guarantee, part: Guarantee | None = None) -> Part:
        try:
            whole = of.epsilon(delta)
            found = whole if part is None else at_most(part.epsilon(delta), whole)
            return {"epsilon": plain(found), "why_not": None}
        except NoGuarantee as error:
            return {"epsilon": None, "why_not": str(error)}

    whole, spent = bracket(declared), bracket(declared, independent)
    rows = [
        {
            "name": run.path,
            "released": run.released,
            "declared": run.declared,
            "over": run.ended is not None,
            "insecure_seed": run.insecure_seed,
        }
        | bracket(run.guarantee(group))
        for run in runs
    ]
    yield whole | {
        "delta": delta,
        "group": group,
        "relation": declared.mechanism.relation,
        "spent": spent["epsilon"],
        "insecure_seed": any(run.insecure_seed for run in runs),
        "runs": rows,
    }


def _about(run: Run) -> Part:
    ended = run.ended
    norms = run.clip_norms and [norm for norm, _ in run.clip_norms]
    return {
        "name": run.path,
        "run": run.id,
        "begun": run.time,
        "verax": run.verax,
        "head": run.head,
        "declared": run.declared,
        "released": run.released,
        "complete": run.complete,
        "over": ended is not None,
        "ended": ended and {"how": ended.kind, "reason": ended.reason, "private": ended.private},
        "resumed": sum(event.kind == "resumed" for event in run.events),
        "torn": run.torn,
        "population": run.population,
        "insecure_seed": run.insecure_seed,
        "unit": run.unit,
        "relation": run.mechanism.relation,
        "mechanism": [repr(phase) for phase in run.mechanism.mechanisms],
        "noise_multiplier": [float(phase.noise_multiplier) for phase in run.mechanism.mechanisms],
        "clip_norm": norms or [float(phase.clipping.norm) for phase in run.mechanism.mechanisms],
        "signal": [_signal(phase, run.population) for phase in run.mechanism.mechanisms],
        "account": run.account(),
    }


def _signal(phase: Mechanism, population: int | None) -> Part:
    """The largest signal to noise of one round, as planned.

    That is its length over the noise, both in clip norms: of a batch of full gradients that agree,
    or of clip-groups. ``each`` is for one record of the batch, if how many there are is not known.
    """
    known = getattr(phase.sampler, "population", population)
    lengths = {Batch: 1.0, Mixed: float(getattr(phase.clipping, "groups", 1))}
    if known is not None:
        lengths[Individual] = phase.sampler.expected_batch(known)
    length, noise = lengths.get(type(phase.clipping)), phase.noise_multiplier
    return {
        "each": number(1.0 / noise if noise > 0.0 else math.inf),
        "round": None if length is None else number(length / noise if noise > 0.0 else math.inf),
        "rounds": len(phase.sampler),
    }


def _points(run: Run, delta: float, group: int, declared: Bracket) -> list[Part]:
    """Epsilon of the run had it been declared to end after so many rounds; it ends as stated.

    From the last to the first, so that fewer rounds never seem to cost more.
    """
    counts = {1, *(math.ceil(run.declared * i / _COUNTS) for i in range(1, _COUNTS + 1))}
    later, found = declared, list[Part]()
    for count in sorted(counts, reverse=True):
        part = replace(run, released=count).guarantee(group, stopping="independent")
        later = at_most(part.epsilon(delta, _RTOL), later)
        found.append({"rounds": count, "epsilon": plain(later)})
    return found[::-1]


def _log(source: Source, suffix: str) -> list[Part]:
    """Numbers that the run itself wrote down next to its ledger: JSON lines with a round each."""
    if source[1] is not None:
        return []
    path = Path(source[2]).with_suffix(suffix)
    try:
        if not path.is_file() or path.is_symlink() or path.stat().st_size > LARGEST_LOG:
            return []
        lines = path.read_text(encoding="utf-8").splitlines()[-MOST_LOGGED:]
    except (OSError, ValueError):
        return []
    series: dict[str, list[tuple[int, float]]] = {}
    for line in lines:
        for name, place, value in _logged(line):
            if name in series or len(series) < MOST_SERIES:
                series.setdefault(name, []).append((place, value))
    return [{"name": name, "points": points} for name, points in sorted(series.items())]


def _logged(line: str) -> Iterator[tuple[str, int, float]]:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return
    place = entry.get("round") if isinstance(entry, dict) else None
    if not isinstance(place, int) or isinstance(place, bool):
        return
    for name, value in entry.items():
        told = (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and abs(value) < LARGEST_LOGGED
        )
        if told and name not in ("round", "rounds", "delta"):
            yield visible(str(name))[:40], place, float(value)


def statement(sources: Sequence[Source], delta: float, group: int, kind: str) -> Iterator[Part]:
    """The statement of runs on the same data, as a page, JSON or prose."""
    made = Statement.of_runs([opened(source) for source in sources], delta, group)
    kinds = {"html": made.html, "json": made.to_json}
    yield {"text": kinds[kind]() if kind in kinds else f"{made}\n"}


def is_written(path: str) -> bool:
    """Whether a process that we can see holds the file to write it, as the writer of a ledger does.

    The system's table of locks is read, because to try the lock would be to take it for a moment
    from a run that wants to go on. Processes in other containers, or of systems without that table,
    are not seen.
    """
    try:
        inode = str(os.stat(path).st_ino)
        locks = LOCKS.read_text(encoding="ascii")
    except OSError:
        return False
    # 1: FLOCK ADVISORY WRITE 4242 fd:01:1234 0 EOF
    held = (line.split() for line in locks.splitlines())
    return any(
        line[1:2] == ["FLOCK"]
        and "WRITE" in line
        and line[5:6]
        and line[5].rpartition(":")[2] == inode
        for line in held
    )


def quiet(path: str) -> Part | None:
    """When the ledger was last written, if nobody seems to go on with it; None if somebody does."""
    try:
        written = os.stat(path).st_mtime
    except OSError:
        return None
    if time.time() - written < QUIET_SECONDS or is_written(path):
        return None
    return {"written": written}


def stamp(path: str) -> tuple[Any, ...] | None:
    """Something that changes whenever the file does; None if it is gone."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
