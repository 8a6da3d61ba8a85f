"""Samplers by name: what a description, the command line, a plan and the browser may ask for.

Samplers of other packages are found through their entry points in the group ``verax.samplers``,
which are loaded once, when an unknown name or all names are asked for.

>>> from verax.samplers import registry
>>> registry.named("balls-in-bins").kind.__name__
'BallsInBins'
>>> registry.kinds()["Shuffle"].relation
'zero-out'
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from verax import checks
from verax.samplers.base import Sampler

S = TypeVar("S", bound=type[Sampler])


@dataclass(frozen=True)
class Entry:
    """A sampler's public name, its label, its class, and the fields that the name decides."""

    name: str
    label: str
    kind: type[Sampler]
    decided: Mapping[str, Any] = field(default_factory=dict)

    def matches(self, sampler: Sampler) -> bool:
        """Whether the sampler is one of this name."""
        return type(sampler) is self.kind and all(
            getattr(sampler, key) == value for key, value in self.decided.items()
        )


ENTRY_POINTS = "verax.samplers"
_ENTRIES: dict[str, Entry] = {}
_LOADED: set[EntryPoint] = set()
_TRAITS = ("relation", "repeats", "independent_records")


def register(name: str, label: str, **decided: Any) -> Callable[[S], S]:
    """Register a sampler under its name on the command line, in plans and in the browser.

    Args:
        name: lower case, with hyphens.
        label: what people read, such as "balls in bins".
        decided: fields that this name decides. A class may be registered under several names that
            differ in these.
    """

    def add(kind: S) -> S:
        if missing := [trait for trait in _TRAITS if not hasattr(kind, trait)]:
            raise TypeError(
                f"{kind.__name__} must say {', '.join(missing)}: see verax.samplers.base.Sampler"
            )
        known = _ENTRIES.get(name)
        other = _classes().get(kind.__name__, kind)
        if known is not None or other is not kind:
            raise ValueError(
                f"sampler {name!r} ({kind.__name__}) is registered already, as {known or other!r}"
            )
        _ENTRIES[name] = Entry(name, label, kind, decided)
        return kind

    return add


def unregister(name: str) -> None:
    """Forget a name, for tests."""
    del _ENTRIES[name]


@cache
def _entry_points() -> tuple[EntryPoint, ...]:
    """What installed packages declare: looked up once, as it takes milliseconds."""
    return tuple(entry_points(group=ENTRY_POINTS))


def _load_entry_points() -> None:
    """Import the modules in which other packages register their samplers; each only once.

    Processes that were started afresh, such as those that compute for the browser, know a sampler
    from outside the package by this alone.
    """
    for found in _entry_points():
        if found in _LOADED:
            continue
        _LOADED.add(found)  # before it is imported: its module may ask for names itself
        try:
            found.load()
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            warnings.warn(
                f"the sampler {found.name!r} of entry point {found.value} cannot be loaded: "
                f"{error}; repair or uninstall the package that declares it",
                RuntimeWarning,
                stacklevel=2,
            )


def _all_entries() -> dict[str, Entry]:
    """All entries, those of other packages too."""
    _load_entry_points()
    return _ENTRIES


def names() -> tuple[str, ...]:
    """All registered names."""
    return tuple(_all_entries())


def plannable() -> tuple[str, ...]:
    """Names of samplers that :func:`planned` can make."""
    return tuple(name for name, entry in _all_entries().items() if entry.kind.plannable)


def named(name: str) -> Entry:
    """The entry of this name; ``ValueError`` lists the names there are."""
    if name not in _ENTRIES:
        checks.choice("sampler", name, names())
    return _ENTRIES[name]


def kinds() -> dict[str, type[Sampler]]:
    """All registered classes, by the name of the class."""
    _load_entry_points()
    return _classes()


def _classes() -> dict[str, type[Sampler]]:
    return {entry.kind.__name__: entry.kind for entry in _ENTRIES.values()}


def entry_of(sampler: Sampler) -> Entry:
    """The entry under which a sampler is known."""
    for entries in (_ENTRIES, _all_entries()):
        for entry in entries.values():
            if entry.matches(sampler):
                return entry
    raise ValueError(
        f"sampler must be a registered one, one of {', '.join(kinds())}, got {sampler!r}"
    )


def planned(name: str, records: int, batch: int, epochs: int) -> Sampler:
    """The sampler of this name with expected batch ``batch`` and about ``epochs`` rounds a record.

    Fixed batches and bins divide the records evenly, so theirs may be smaller than ``batch``;
    Poisson rounds are counted up to the next whole one. A truncated run's largest batch is one it
    practically never reaches, a buffer holds a tenth of the batches.

    >>> planned("poisson", records=60000, batch=600, epochs=3)
    Poisson(rate=0.01, steps=300)
    >>> planned("balls-in-bins", records=60000, batch=512, epochs=3)
    BallsInBins(bins=118, epochs=3)
    """
    entry = named(name)
    records, epochs = checks.count("records", records), checks.count("epochs", epochs)
    sampler = entry.kind.planned(records, checks.count("batch", batch, maximum=records), epochs)
    return replace(sampler, **entry.decided)  # type: ignore[type-var]  # samplers are dataclasses
