"""The lines of a ledger: how they are written, chained, checked, and completed after a crash.

See docs/ledger.md.

Every line is a JSON object whose last member is its hash: the SHA-256 of the hash of the line
before and of the line's own bytes up to it. Everything a line may say is fixed by the lines before
it, but for the words of a ``stopped`` entry; so a line that a crash cut short can be completed by
appending to it, and the file only ever grows.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from io import IOBase
from itertools import accumulate
from typing import Any

from verax import checks
from verax.description import describe, restore
from verax.display import visible
from verax.durable import FIRST_HASH, chain_line, encode
from verax.ledger.clip_norms import NormSchedule
from verax.mechanism import UNITS, Phases

# Formats: the first; with a clip norm for every round; with another unit than records.
FORMAT = 1
FORMAT_CLIP_NORMS = 2
FORMAT_UNIT = 3
OPENING = b'{"verax_ledger":'
_FIELDS = {"verax_ledger", "verax", "run", "time", "insecure_seed", "population", "mechanism"}
_MORE_FIELDS: dict[int, set[str]] = {
    FORMAT: set(),
    FORMAT_CLIP_NORMS: {"clip_norms"},
    FORMAT_UNIT: {"clip_norms", "unit"},
}
# Characters of a reason.
_LONGEST_REASON = 500
# Bytes of a line after the first: no entry has a thousandth of it.
_LONGEST_LINE = 2**20
# Bytes of the first line: room for a clip norm for each of ten million rounds.
_LONGEST_HEADER = 2**28
_CUT = "cut short by a crash"
# What verax itself writes into the texts of the first line.
_RUN = "[0-9a-f]{32}"
_TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00"
_VERSION = r"[\w.+!-]{1,100}"
_RESTORE = "Restore the file from a copy; without one, charge the whole declared run"


class LedgerError(ValueError):
    """What is wrong with a ledger, or with what it was asked to record."""

    def __init__(self, message: str) -> None:
        super().__init__(visible(message))  # file names and contents are others' words


class DamagedLedger(LedgerError):
    """The file is not what a ledger wrote: names the file, the line, and what is wrong with it."""


def damaged_line_error(name: str, line: int, what: str) -> DamagedLedger:
    """The error for one line of one file."""
    return DamagedLedger(f"{name}, line {line}: {what}. {_RESTORE}")


@dataclass(frozen=True)
class Header:
    """The first line: what will run. Public facts only."""

    mechanism: Phases
    run: str
    """Random, and the same in every copy of this ledger."""
    time: str
    verax: str
    population: int | None = None
    insecure_seed: bool = False
    clip_norms: NormSchedule | None = None
    """If the clip norm changes; the noise of a round is the multiplier times its norm."""
    unit: str = "record"
    """Who is protected as a whole: a record, or a client."""

    @property
    def format(self) -> int:
        """The oldest format that has all the fields."""
        if self.unit != "record":
            return FORMAT_UNIT
        return FORMAT if self.clip_norms is None else FORMAT_CLIP_NORMS

    def line(self) -> tuple[bytes, str]:
        """The line and its hash."""
        content: dict[str, Any] = {
            "verax_ledger": self.format,
            "verax": self.verax,
            "run": self.run,
            "time": self.time,
            "insecure_seed": self.insecure_seed,
            "population": self.population,
            "mechanism": describe(self.mechanism),
        }
        content |= {name: getattr(self, name) for name in sorted(_MORE_FIELDS[self.format])}
        return chain_line(encode(content), FIRST_HASH)


@dataclass(frozen=True)
class Event:
    """The run was resumed, finished or stopped after ``released`` rounds."""

    kind: str
    released: int
    reason: str = ""
    private: bool = False
    """Whether the reason was seen in the private data: stopping is then a release without noise."""


@dataclass
class Log:
    """The content of the lines so far, and what the next ones may be."""

    name: str
    header: Header
    head: str
    """Hash of the last line: it fixes the whole ledger up to there."""
    size: int
    lines: int = 1
    released: int = 0
    events: list[Event] = field(default_factory=list)
    missing: bytes = b""
    """What a crash left unwritten of the last line, which counts as if it were there."""
    zeros: int = 0
    """How many zero bytes a power cut left in its place."""
    declared: int = field(init=False)
    """Number of rounds the mechanism has."""

    def __post_init__(self) -> None:
        phases = self.header.mechanism.mechanisms
        self._phase_ends = list(accumulate(len(phase.sampler) for phase in phases))
        self.declared = self._phase_ends[-1]
        self._norm_ends = list(accumulate(rounds for _, rounds in self.header.clip_norms or ()))

    def declared_round(self, number: int) -> tuple[float, float]:
        """The clip norm and the noise multiplier that a round was declared to have."""
        phase = self.header.mechanism.mechanisms[bisect_right(self._phase_ends, number)]
        norm, schedule = phase.clipping.norm, self.header.clip_norms
        if schedule is not None:
            norm = schedule[bisect_right(self._norm_ends, number)][0]
        return norm, phase.noise_multiplier

    @property
    def over(self) -> Event | None:
        """The event that ended the run, if it has ended."""
        return self.events[-1] if self.events and self.events[-1].kind != "resumed" else None

    def round_line(self) -> tuple[bytes, str]:
        """The line that records the next round, and its hash. It has no other content, no time."""
        if self._norm_ends and self.released < self.declared:
            norm = repr(self.declared_round(self.released)[0]).encode()
            return chain_line(b'{"round":%d,"clip_norm":%b' % (self.released, norm), self.head)
        return chain_line(b'{"round":%d' % self.released, self.head)

    def event_line(self, event: Event) -> tuple[bytes, str]:
        """The line that records an event, and its hash."""
        content: dict[str, Any] = {"event": event.kind, "released": event.released}
        if event.kind == "stopped":
            content |= {"private": event.private, "reason": event.reason}
        return chain_line(encode(content), self.head)

    def add(self, line: bytes, digest: str, event: Event | None = None) -> None:
        """Count a line: a round, or an event."""
        self.head = digest
        self.size += len(line)
        self.lines += 1
        if event is None:
            self.released += 1
        else:
            self.events.append(event)

    def read(self, line: bytes) -> None:
        """Count a line of a file; raise if a ledger would not have written it here."""
        expected, digest = self.round_line()
        if line == expected and not self.over and self.released < self.declared:
            self.add(line, digest)
            return
        event = self._event(line)
        expected, digest = self.event_line(event)
        if line != expected:
            raise self._line_error("it does not say what a ledger would say here")
        self.add(line, digest, event)

    def _line_error(self, what: str) -> DamagedLedger:
        return damaged_line_error(self.name, self.lines + 1, what)

    def _event(self, line: bytes) -> Event:
        entry = _json_object(line)
        if entry is None:
            raise self._line_error("it is not a JSON object")
        body, found, _ = line.rpartition(b',"hash":"')
        if not found or chain_line(body, self.head)[0] != line:
            raise self._line_error(
                "its hash does not fit: this or an earlier line was edited, added, removed or moved"
            )
        if self.over:
            raise self._line_error(
                f"the run was {self.over.kind} on the line before, and nothing may follow"
            )
        if "round" in entry:
            due = self.released if self.released < self.declared else "none"
            raise self._line_error(f"it records round {entry['round']!r} where {due} is due")
        kind, reason, private = map(entry.get, ("event", "reason", "private"), (None, "", False))
        known = kind in ("resumed", "finished", "stopped")
        if not known or not _is_plain_text(reason) or not isinstance(private, bool):
            raise self._line_error("it records an unknown event")
        return Event(kind, self.released, reason, private)

    def complete(self, tail: bytes) -> None:
        """Count a last line that a crash cut short: as a round wherever it may have begun one.

        A power cut can leave zeros where bytes were to be: each stands for a byte that may have
        been written, so as many rounds are counted as have room in them.
        """
        fragment = tail.rstrip(b"\0")
        end, lines = self.size + len(tail), list[bytes]()
        while self.size < end:
            lines.append(self._completed_line(b"" if lines else fragment, end - self.size))
            self.read(lines[-1])
        self.missing, self.zeros = b"".join(lines)[len(fragment) :], len(tail) - len(fragment)

    def _completed_line(self, fragment: bytes, length: int) -> bytes:
        """The line that begins with the fragment, and may have had at least this length."""
        if not self.over:
            for line in self._possible_lines(fragment, length):
                if line.startswith(fragment):
                    return line
        raise self._line_error("it is not the beginning of anything a ledger would say here")

    def _possible_lines(self, tail: bytes, length: int) -> Iterator[bytes]:
        if self.released < self.declared:
            yield self.round_line()[0]
        for kind in ("resumed", "finished"):
            yield self.event_line(Event(kind, self.released))[0]
        for private in (True, False):
            whole = self.event_line(Event("stopped", self.released, _CUT, private))[0]
            opening = whole[: whole.index(_CUT.encode())]
            said, closed, _ = tail[len(opening) :].decode("latin-1").partition('"')
            reason = _CUT
            if tail.startswith(opening) and (not said or _is_plain_text(said)):
                reason = said if closed else f"{said} [{_CUT}]"
                whole = self.event_line(Event("stopped", self.released, reason, private))[0]
            # The reason may have been longer.
            more = 0 if closed else length - len(whole)
            yield self.event_line(Event("stopped", self.released, reason + "." * more, private))[0]


def lines_of(file: IOBase) -> Iterator[bytes]:
    """The lines of a file; a line longer than any ledger's is cut just beyond the limit."""
    first = file.readline(_LONGEST_LINE)
    if first.startswith(OPENING) and not first.endswith(b"\n"):
        first += file.readline(_LONGEST_HEADER)
    yield first
    while line := file.readline(_LONGEST_LINE + 1):
        yield line


def parse(lines: Iterable[bytes], name: str, head: str | None = None) -> Log:
    """Check every line of a ledger and return its log.

    Args:
        lines: the file, or its lines with their ends.
        name: what to call the file in errors.
        head: a hash noted earlier; it must be the hash of one of the lines.
    """
    rest = lines_of(lines) if isinstance(lines, IOBase) else iter(lines)
    log = _log_from_header(next(rest, b""), name)
    head_found = head is None or head == log.head
    for line in rest:
        if len(line) > _LONGEST_LINE:
            what = f"it has more than {_LONGEST_LINE} bytes, which no entry has"
            raise damaged_line_error(name, log.lines + 1, what)
        if line.endswith(b"\n"):
            log.read(line)
        else:
            log.complete(line)
        head_found = head_found or head == log.head
    if not head_found:
        raise DamagedLedger(
            f"{name}: no line has the hash {head}, so lines were cut off or rewritten after it was "
            f"noted. {_RESTORE}"
        )
    return log


def is_unfinished_header(content: bytes) -> bool:
    """Whether a crash left only this of a ledger's first line, before anything was released."""
    # A power cut can leave zeros where bytes were to be.
    written = content.rstrip(b"\0")
    return b"\n" not in content and (written.startswith(OPENING) or OPENING.startswith(written))


def reason_of(text: str) -> str:
    """Printable ASCII without quotes and backslashes, so that it can be cut anywhere."""
    plain = str(text).replace('"', "'").replace("\\", "/").encode("ascii", "replace").decode()
    words = " ".join("".join(c if c.isprintable() else " " for c in plain).split())
    if not words:
        raise ValueError(f"reason must say something, got {text!r}")
    return words[:_LONGEST_REASON]


def _is_plain_text(reason: Any) -> bool:
    if not isinstance(reason, str) or not reason.isascii():
        return False
    return all(c.isprintable() and c not in '"\\' for c in reason)


def _log_from_header(line: bytes, name: str) -> Log:
    """The log of a ledger that has this first line."""
    if is_unfinished_header(line):
        raise DamagedLedger(
            f"{name}, line 1: a crash cut the ledger's creation short, before anything was "
            "released. Create it again: Ledger.create takes its place"
        )
    entry = _json_object(line)
    if entry is None or not line.startswith(OPENING):
        what = "the file is not a verax ledger, or its first line is damaged"
        raise damaged_line_error(name, 1, what)
    version = entry["verax_ledger"]
    if isinstance(version, bool) or not isinstance(version, int) or version not in _MORE_FIELDS:
        raise LedgerError(
            f"{name} is a ledger of format {version!r}, and this verax knows formats {FORMAT} to "
            f"{FORMAT_UNIT}; read it with the version that wrote it"
        )
    fields = _FIELDS | _MORE_FIELDS[version]
    if set(entry) != fields | {"hash"}:
        what = f"it must have exactly the fields {', '.join(sorted(fields))} and hash"
        raise damaged_line_error(name, 1, what)
    try:
        mechanism = restore(entry["mechanism"])
        phases = mechanism if isinstance(mechanism, Phases) else Phases((mechanism,))
        population = entry["population"]
        header = Header(
            phases,
            _header_text(entry, "run", _RUN),
            _header_text(entry, "time", _TIME),
            _header_text(entry, "verax", _VERSION),
            None if population is None else checks.count("population", population),
            bool(entry["insecure_seed"]),
            None if entry.get("clip_norms") is None else _schedule(entry["clip_norms"], phases),
            checks.choice("unit", entry.get("unit", "record"), UNITS),
        )
    except (ValueError, TypeError) as error:
        raise damaged_line_error(name, 1, str(error)) from error
    expected, digest = header.line()
    if line != expected:
        raise damaged_line_error(name, 1, "its hash does not fit what it says: it was edited")
    return Log(name, header, digest, len(line))


def _header_text(entry: dict[str, Any], name: str, pattern: str) -> str:
    """A text of the first line. It is shown to people: only what verax writes is accepted."""
    found = entry[name]
    if not isinstance(found, str) or not re.fullmatch(pattern, found, re.ASCII):
        raise ValueError(f"{name} must be as verax writes it, got {found!r}")
    return found


def _schedule(found: Any, phases: Phases) -> NormSchedule:
    """The declared clip norms, for all rounds and no more."""
    schedule = tuple(
        (checks.positive("clip_norms", norm), checks.count("clip_norms", rounds))
        for norm, rounds in found
    )
    declared = sum(len(phase.sampler) for phase in phases.mechanisms)
    given = sum(rounds for _, rounds in schedule)
    if declared != given:
        raise ValueError(f"clip_norms must be for the {declared} declared rounds, got {given}")
    return schedule


def _json_object(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None
