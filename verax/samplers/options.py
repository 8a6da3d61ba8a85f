"""Samplers from command-line options.

A sampler's fields are annotated with the :class:`Option` that sets them. Three of them can also be
given in another way: ``--records`` and ``--batch`` make a rate or a number of batches, and
``--epochs`` a number of rounds.

>>> from verax.samplers.options import build
>>> build("poisson", {"--records": 60000, "--batch": 600, "--epochs": 10})
Poisson(rate=0.01, steps=1000)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from fractions import Fraction
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from verax import checks
from verax.samplers import registry
from verax.samplers.base import Sampler


@dataclass(frozen=True)
class Option:
    """How a field is set on the command line: the flag, and a sentence of help."""

    flag: str
    help: str

    @property
    def parameter(self) -> str:
        """The flag as the name of a Python parameter."""
        return self.flag.removeprefix("--").replace("-", "_")


Rate = Annotated[float, Option("--rate", "Sampling rate; or give --records and --batch.")]
Steps = Annotated[
    int, Option("--steps", "Number of rounds where each is drawn anew; or give --epochs.")
]
BatchCount = Annotated[
    int, Option("--batches", "Batches per epoch; or give --records and --batch.")
]
Epochs = Annotated[int, Option("--epochs", "Passes over the data.")]
Records = Annotated[int, Option("--records", "Number of records, with --batch in place of --rate.")]
BatchSize = Annotated[int, Option("--batch", "Expected batch size, with --records.")]


@dataclass(frozen=True)
class Field:
    """A sampler's field, its type, its option and its default (``MISSING`` if it has none)."""

    name: str
    kind: type
    option: Option
    default: Any


def option_fields(kind: type[Sampler]) -> list[Field]:
    """The fields of a sampler that have an option."""
    hints = get_type_hints(kind, include_extras=True)
    found = []
    for field in fields(kind):  # type: ignore[arg-type]  # samplers are dataclasses
        hint = hints[field.name]
        if get_origin(hint) is Annotated:
            bare, option = get_args(hint)[:2]
            found.append(Field(field.name, bare, option, field.default))
    return found


SHARED: dict[str, tuple[type, Option]] = {
    get_args(hint)[1].flag: get_args(hint)[:2]
    for hint in (Rate, Steps, Records, BatchSize, BatchCount, Epochs)
}
"""Options that many samplers have, by flag: the type and the help."""


def all_options() -> dict[str, tuple[type, Option]]:
    """Every option of every registered sampler, by flag: its type and its help."""
    found = dict(SHARED)
    for name in registry.names():
        entry = registry.named(name)
        for field in option_fields(entry.kind):
            if field.name not in entry.decided and field.option.flag not in found:
                text = f"{field.option.help.rstrip('.')}, for {name}."
                found[field.option.flag] = field.kind, Option(field.option.flag, text)
    return found


def build(name: str, given: Mapping[str, Any]) -> Sampler:
    """The sampler of this name that options describe; None is an option that was left out.

    Raises ``ValueError`` for an option that is missing, contradicts another, or says nothing about
    this sampler.
    """
    entry = registry.named(name)
    options = {flag: value for flag, value in given.items() if value is not None}
    wanted = [field for field in option_fields(entry.kind) if field.name not in entry.decided]
    flags = {field.option.flag for field in wanted}
    for one, other in (("--batch", "--records"), ("--records", "--batch")):
        alone = one in options and other not in options
        if alone and (one == "--batch" or "--records" not in flags):
            raise ValueError(
                f"{one} {options[one]} needs {other}: "
                "together they take the place of --rate or --batches"
            )
    _refuse_others(name, flags, options)
    values: dict[str, Any] = dict(entry.decided)
    for field in wanted:
        resolve = _RESOLVERS.get(field.option.flag, _given_or_default)
        value = resolve(name, field, flags, options)
        if value is not MISSING:
            values[field.name] = value
    return entry.kind(**values)


def describe(sampler: Sampler) -> list[str]:
    """The options that :func:`build` makes this sampler of, as they are typed.

    >>> from verax import Poisson
    >>> describe(Poisson(rate=0.01, steps=1000))
    ['--rate', '0.01', '--steps', '1000']
    """
    entry = registry.entry_of(sampler)
    typed: list[str] = []
    for field in option_fields(entry.kind):
        value = getattr(sampler, field.name)
        if field.name in entry.decided or (
            value == field.default and field.option.flag != "--epochs"
        ):
            continue
        typed += [field.option.flag] if field.kind is bool else [field.option.flag, repr(value)]
    return typed


def _refuse_others(name: str, flags: set[str], options: Mapping[str, Any]) -> None:
    """Refuse options that say nothing about this sampler."""
    accepted = set(flags)
    if flags & {"--rate", "--batches"}:
        accepted |= {"--records", "--batch"}
    if "--steps" in flags:
        accepted.add("--epochs")
    for flag, value in options.items():
        if flag not in accepted and value is not False:
            owners = owners_of(flag)
            if len(owners) == 1:
                raise ValueError(f"{flag} is for --sampler {owners[0]}, got --sampler {name}")
            takes = ", ".join(sorted(accepted))
            raise ValueError(f"{flag} {value} is not for --sampler {name}: it takes {takes}")


def owners_of(flag: str) -> list[str]:
    """Names of the samplers that have this option."""
    return [name for name in registry.names() if flag in flags_of(name)]


def flags_of(name: str) -> set[str]:
    """The options that set fields of the sampler of this name."""
    entry = registry.named(name)
    return {
        field.option.flag for field in option_fields(entry.kind) if field.name not in entry.decided
    }


def _given_or_default(name: str, field: Field, flags: set[str], options: Mapping[str, Any]) -> Any:
    flag = field.option.flag
    if flag in options:
        return options[flag]
    if field.default is MISSING:
        both = {"--records", "--batch"} <= flags and flag in ("--records", "--batch")
        raise ValueError(f"--sampler {name} needs {'--records and --batch' if both else flag}")
    return MISSING


def _rate(name: str, field: Field, flags: set[str], options: Mapping[str, Any]) -> float:
    rate, share = options.get("--rate"), _share(options)
    if share is None:
        if rate is None:
            raise ValueError(f"--sampler {name} needs --rate, or --records and --batch")
        return checks.rate("--rate", rate)
    if rate is not None and not math.isclose(rate, float(share), rel_tol=1e-6):
        raise ValueError(
            f"--records {options['--records']} and --batch {options['--batch']} "
            f"make a rate of {float(share):g}, got --rate {rate:g}"
        )
    return float(share) if rate is None else float(rate)


def _steps(name: str, field: Field, flags: set[str], options: Mapping[str, Any]) -> Any:
    """The rounds from --steps or --epochs; both only if they agree."""
    steps, epochs = options.get("--steps"), options.get("--epochs")
    if epochs is None:
        if steps is None:
            raise ValueError(f"--sampler {name} needs --steps or --epochs")
        return steps
    share = _share(options)
    if share is None:  # as it was typed: 7 epochs at 0.07 are 100 rounds
        share = Fraction(repr(checks.rate("--rate", options.get("--rate"))))
    made = math.ceil(checks.count("--epochs", epochs) / share)
    if steps not in (None, made):
        raise ValueError(
            f"--epochs {epochs} makes {made} steps, got --steps {steps}: give one of them"
        )
    return made


def _batches(name: str, field: Field, flags: set[str], options: Mapping[str, Any]) -> Any:
    batches, share = options.get("--batches"), _share(options)
    if share is None:
        if batches is None:
            raise ValueError(f"--sampler {name} needs --batches, or --records and --batch")
        return batches
    needed = math.ceil(1 / share)
    if batches not in (None, needed):
        raise ValueError(
            f"--records {options['--records']} and --batch {options['--batch']} "
            f"make {needed} batches, got --batches {batches}"
        )
    return needed


def _share(options: Mapping[str, Any]) -> Fraction | None:
    """The share of the records in a batch, if --records and --batch are given."""
    if "--records" not in options or "--batch" not in options:
        return None
    batch, records = (checks.count(flag, options[flag]) for flag in ("--batch", "--records"))
    return Fraction(batch, records)


_RESOLVERS: dict[str, Callable[[str, Field, set[str], Mapping[str, Any]], Any]] = {
    "--rate": _rate,
    "--steps": _steps,
    "--batches": _batches,
}
