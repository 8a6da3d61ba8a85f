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
from verax.reporting.statement.json_values import json_number, json_run
from verax.web.computations import Part, bracket_part

SUFFIX, LOG_SUFFIX, PRIVATE_SUFFIX = ".ledger", ".log", ".private"
MOST_FILES = 500
# Of a log: its largest size in bytes, the lines and names that are shown, and the largest value.
LARGEST_LOG, MOST_LOGGED, MOST_SERIES, LARGEST_LOGGED = 2**22, 2_000, 12, 1e300
# Numbers of rounds at which epsilon is read for the figure, and how closely.
_COUNTS, _RTOL = 12, 1e-2
# After so long without a line, and without a process that could write one, a run is broken off.
QUIET_SECONDS = 120.0
LOCKS = Path("/proc/locks")

# A ledger's name, its bytes if it was sent to us, and the file it is in if not.
Source = tuple[str, bytes | None, str]


def find_ledgers(folder: Path) -> dict[str, float]:
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


def path_inside(folder: Path, name: str) -> Path | None:
    """The file of this name, if it is a ledger in the folder."""
    root = folder.resolve()
    try:
        path = (root / name).resolve()
        good = path.is_relative_to(root) and path.suffix == SUFFIX and path.is_file()
    except (OSError, ValueError):  # a name that no file can have
        return None
    return path if good else None


def read_run(source: Source) -> Run:
    """The run that a ledger records, once the ledger is checked."""
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
    run = read_run(source)
    about = _about(run) | {
        "delta": delta,
        "group": group,
        "log": _log(source, LOG_SUFFIX),
        "diagnostics": _log(source, PRIVATE_SUFFIX) if diagnostics else None,
        "points": [],
    }
    try:
        declared = run.guarantee(group).epsilon(delta)
        independent = if_independent([run], group)
        spent = declared if independent is None else at_most(independent.epsilon(delta), declared)
    except NoGuarantee as error:
        found = {"epsilon": None, "spent": None, "why_not": str(error), "provisional": False}
        yield about | found
        return
    about |= {"epsilon": bracket_part(declared), "spent": bracket_part(spent), "why_not": None}
    yield about | {"provisional": True}
    yield about | {"points": _points(run, delta, group, declared), "provisional": False}


def together(sources: Sequence[Source], delta: float, group: int) -> Iterator[Part]:
    """What ledgers of runs on the same data prove together, and each on its own."""
    runs = [read_run(source) for source in sources]
    declared = compose(runs, group)
    independent = if_independent(runs, group)

    def bracket(of: Guarantee, part: Guarantee | None = None) -> Part:
        try:
            whole = of.epsilon(delta)
            found = whole if part is None else at_most(part.epsilon(delta), whole)
            return {"epsilon": bracket_part(found), "why_not": None}
        except NoGuarantee as error:
            return {"epsilon": None, "why_not": str(error)}

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
    yield bracket(declared) | {
        "delta": delta,
        "group": group,
        "relation": declared.mechanism.relation,
        "spent": bracket(declared, independent)["epsilon"],
        "insecure_seed": any(run.insecure_seed for run in runs),
        "runs": rows,
    }


def _about(run: Run) -> Part:
    phases = run.mechanism.mechanisms
    norms = [norm for norm, _ in run.clip_norms or ()]
    return json_run(run) | {
        "name": run.path,
        "complete": run.complete,
        "over": run.ended is not None,
        "unit": run.unit,
        "relation": run.mechanism.relation,
        "mechanism": [repr(phase) for phase in phases],
        "noise_multiplier": [float(phase.noise_multiplier) for phase in phases],
        "clip_norm": norms or [float(phase.clipping.norm) for phase in phases],
        "signal": [_signal(phase, run.population) for phase in phases],
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

    def signal(length: float) -> float | str:
        return json_number(length / noise if noise > 0.0 else math.inf)

    return {
        "each": signal(1.0),
        "round": None if length is None else signal(length),
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
        found.append({"rounds": count, "epsilon": bracket_part(later)})
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
        for name, place, value in _logged_numbers(line):
            if name in series or len(series) < MOST_SERIES:
                series.setdefault(name, []).append((place, value))
    return [{"name": name, "points": points} for name, points in sorted(series.items())]


def _logged_numbers(line: str) -> Iterator[tuple[str, int, float]]:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return
    place = entry.get("round") if isinstance(entry, dict) else None
    if not isinstance(place, int) or isinstance(place, bool):
        return
    for name, value in entry.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and abs(value) < LARGEST_LOGGED and name not in ("round", "rounds", "delta"):
            yield visible(str(name))[:40], place, float(value)


def statement(sources: Sequence[Source], delta: float, group: int, kind: str) -> Iterator[Part]:
    """The statement of runs on the same data, as a page, JSON or prose."""
    made = Statement.of_runs([read_run(source) for source in sources], delta, group)
    kinds = {"html": made.html, "json": made.to_json}
    yield {"text": kinds[kind]() if kind in kinds else f"{made}\n"}


def is_being_written(path: str) -> bool:
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


def silence(path: str) -> Part | None:
    """When the ledger was last written, if nobody seems to go on with it; None if somebody does."""
    try:
        written = os.stat(path).st_mtime
    except OSError:
        return None
    if time.time() - written < QUIET_SECONDS or is_being_written(path):
        return None
    return {"written": written}


def version_of(path: str) -> tuple[Any, ...] | None:
    """Inode, size and time of the file, which change whenever it does; None if it is gone."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
