"""Options as frozen objects: a command takes one value where it would take a dozen parameters.

Every field of a parameter whose type is a dataclass becomes an option of a command that is
decorated with :func:`flat`. Options of samplers come from the registry, so that a new sampler
brings its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from verax import Batch, Individual, Mechanism, Mixed, checks
from verax.mechanism import Clipping
from verax.reporting.figures import drawable
from verax.reporting.statement import savable
from verax.samplers import registry
from verax.samplers.base import Sampler
from verax.samplers.options import SHARED, Option, all_options, build

_OPTION = "option"  # key in the metadata of a field


def option(help: str, *flags: str, default: Any = None, **more: Any) -> Any:
    """A field that is an option: its help, its flags if not its name; ``default=...`` asks for it.

    >>> @dataclass(frozen=True, kw_only=True)
    ... class Example:
    ...     records: int = option("Number of records.", default=...)
    ...     learning_rate: float = option("Step size.", "--learning-rate", "--lr", default=0.5)
    >>> Example(records=3)
    Example(records=3, learning_rate=0.5)
    """
    return field(
        default=MISSING if default is ... else default,
        metadata={_OPTION: typer.Option(*flags, help=help, **more)},
    )


class ClippingName(StrEnum):
    """Clippings that can be named on the command line."""

    individual = "individual"
    batch = "batch"
    mixed = "mixed"


class RelationName(StrEnum):
    """Neighbouring relations."""

    add_remove = "add-remove"
    zero_out = "zero-out"
    replaced = "replace"


class ModelName(StrEnum):
    """Models that can be named on the command line."""

    logistic = "logistic"
    mlp = "mlp"
    lenet = "lenet"
    cnn = "cnn"


class OptimizerName(StrEnum):
    """Optimizers that can be named on the command line."""

    sgd = "sgd"
    adam = "adam"

    def build(self, parameters: Any, learning_rate: float) -> Any:
        """The optimizer of these parameters."""
        from torch import optim

        return {"sgd": optim.SGD, "adam": optim.Adam}[self.value](parameters, learning_rate)


class SamplerFlags(dict[str, Any]):
    """What was typed of every option that some sampler has, by flag; None where it was left out."""

    @classmethod
    def flags(cls) -> dict[str, tuple[type, Option]]:
        """The options to offer, and their types."""
        return all_options()


class SpecialFlags(SamplerFlags):
    """The same without the options that many samplers share, for commands that know the data."""

    @classmethod
    def flags(cls) -> dict[str, tuple[type, Option]]:
        """The options to offer, and their types."""
        return {flag: found for flag, found in super().flags().items() if flag not in SHARED}

    def build(self, name: str, records: int, batch: int | None, epochs: int) -> Sampler:
        """The sampler of this name for so many records."""
        size = expected_batch(batch, records)
        known = {"--records": records, "--batch": size, "--epochs": epochs}
        return build(name, {**self, **known})


Noise = Annotated[
    float, typer.Option("--noise-multiplier", "-z", help="Noise standard deviation / clip norm.")
]
NoiseInstead = Annotated[
    float | None, typer.Option("--noise-multiplier", "-z", help="The noise, in place of --epsilon.")
]
SamplerOption = Annotated[
    str, typer.Option("--sampler", help=f"Who is in each batch: {', '.join(registry.names())}.")
]
ExpectedBatch = Annotated[
    int | None,
    typer.Option(
        "--batch",
        help="Expected batch size; default: 256, or a quarter of the records if that is less.",
    ),
]
Epochs = Annotated[int, typer.Option(help="Passes over the data.")]
ClippingOption = Annotated[
    ClippingName, typer.Option("--clipping", help="What is clipped before noise is added.")
]
ClipGroups = Annotated[int, typer.Option(help="Number of clip-groups, for mixed clipping.")]
Relation = Annotated[
    RelationName | None, typer.Option(help="Neighbouring relation; default: the sampler's own.")
]
Group = Annotated[int, typer.Option(help="How many records are protected together.")]
Rtol = Annotated[float, typer.Option(help="Relative distance of the two sides.")]
Figure = Annotated[Path | None, typer.Option(help="Save a figure here: .png, .svg or .pdf.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


class MechanismFields:
    """Base of options among which are a clipping and a relation."""

    clipping: ClippingName
    clip_groups: int
    relation: RelationName | None

    def build_clipping(self) -> Clipping:
        """The clipping; clip-groups are refused where it has none."""
        return clippings_by_name(self.clip_groups, [self.clipping.value])[self.clipping.value]

    @property
    def relation_name(self) -> str:
        """The relation, or nothing for the sampler's own."""
        return self.relation.value if self.relation else ""


@dataclass(frozen=True)
class RunOptions(MechanismFields):
    """A run as it was typed, before noise."""

    sampler: SamplerOption = "poisson"
    drawing: SamplerFlags = field(default_factory=SamplerFlags)
    clipping: ClippingOption = ClippingName.individual
    clip_groups: ClipGroups = 1
    relation: Relation = None

    def build_sampler(self, **other: Any) -> Sampler:
        """The sampler, with options changed by flag (underscores for hyphens)."""
        changed = {f"--{name.replace('_', '-')}": value for name, value in other.items()}
        return build(self.sampler, {**self.drawing, **changed})

    def mechanism(self, noise_multiplier: float) -> Mechanism:
        """The run with this noise."""
        return Mechanism(
            self.build_sampler(), noise_multiplier, self.build_clipping(), self.relation_name
        )


def clippings_by_name(clip_groups: int, named: list[str]) -> dict[str, Clipping]:
    """Every clipping by its name; clip-groups are refused without mixed clipping."""
    if clip_groups != 1 and ClippingName.mixed.value not in named:
        raise ValueError(
            f"--clip-groups {clip_groups} is for --clipping mixed, got --clipping "
            f"{','.join(named)}: leave one of them out"
        )
    return {"individual": Individual(), "batch": Batch(), "mixed": Mixed(groups=clip_groups)}


def expected_batch(batch: int | None, records: int) -> int:
    """The expected batch size: what was asked for, or what suits so many records."""
    if batch is None:
        return max(min(256, records // 4), 1)
    if batch > records:
        raise ValueError(
            f"--batch must be at most the number of records to train on, {records}, got {batch}"
        )
    return batch


def typed_options(context: typer.Context, names: Iterable[str] | None = None) -> list[str]:
    """The options that were typed, among ``names`` or among all parameters."""
    wanted = None if names is None else set(names)
    return [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name is not None
        and (wanted is None or parameter.name in wanted)
        and (source := context.get_parameter_source(parameter.name)) is not None
        and source.name == "COMMANDLINE"
    ]


def refuse_together(context: typer.Context, names: Iterable[str], other: str, why: str) -> None:
    """Refuse options that another one makes void: nothing that is typed is ignored."""
    if found := typed_options(context, names):
        raise ValueError(f"{' and '.join(found)} cannot be given with {other}: {why}")


def checked_files(files: Mapping[str, Path | None], saved: Iterable[str]) -> None:
    """Refuse files of which some could not be ``saved`` after a run, or one that is named twice."""
    if (report := files["--report"]) is not None:
        savable(report)
    for name in saved:
        if (path := files[name]) is not None:
            checks.writable(name, path)
    taken: dict[Path, str] = {}
    for name, path in files.items():
        if path is not None and (other := taken.setdefault(path.resolve(), name)) != name:
            raise ValueError(
                f"{other} and {name} must be different files, got {str(path)!r} for both"
            )


def checked_figure(figure: Path | None) -> None:
    """Refuse a figure that could not be saved, and make its folder."""
    if figure is not None:
        folder = drawable(figure).parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(
                f"--figure must name a place that can be written, got {folder}: {error.strerror}"
            ) from error


def flat(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with one option per field of its dataclass or sampler-flag parameters."""
    hints = get_type_hints(command, include_extras=True)
    own = inspect.signature(command).parameters
    flattened: list[inspect.Parameter] = []
    for name, parameter in own.items():
        flattened += _expand(name, hints[name], parameter.default)

    @wraps(command)
    def called(**given: Any) -> Any:
        return command(**{name: _gather(name, hints[name], given) for name in own})

    called.__signature__ = inspect.Signature(flattened)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in flattened}
    del called.__wrapped__
    return called


def _expand(name: str, hint: Any, default: Any) -> list[inspect.Parameter]:
    """The parameters that stand for one of this type."""
    if isinstance(hint, type) and issubclass(hint, SamplerFlags):
        return [
            _parameter(option.parameter, _optional_hint(kind, option), None)
            for kind, option in hint.flags().values()
        ]
    if isinstance(hint, type) and is_dataclass(hint):
        inner = get_type_hints(hint, include_extras=True)
        return [
            one
            for part in fields(hint)
            for one in _expand(part.name, _annotated(part, inner[part.name]), _default(part))
        ]
    return [_parameter(name, hint, default)]


def _gather(name: str, hint: Any, given: Mapping[str, Any]) -> Any:
    """The value of this type, put together from what was typed."""
    if isinstance(hint, type) and issubclass(hint, SamplerFlags):
        return hint({flag: given[option.parameter] for flag, (_, option) in hint.flags().items()})
    if isinstance(hint, type) and is_dataclass(hint):
        inner = get_type_hints(hint, include_extras=True)
        return hint(
            **{part.name: _gather(part.name, inner[part.name], given) for part in fields(hint)}
        )
    return given[name]


def _annotated(part: Field[Any], hint: Any) -> Any:
    """The type of a field, with its option if :func:`option` made it."""
    found = part.metadata.get(_OPTION)
    return hint if found is None else Annotated[hint, found]


def _default(part: Field[Any]) -> Any:
    return inspect.Parameter.empty if part.default is MISSING else part.default


def _parameter(name: str, hint: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _optional_hint(kind: type, option: Option) -> Any:
    if kind is bool:
        return Annotated[
            bool | None, typer.Option(option.flag, help=option.help, show_default=False)
        ]
    return Annotated[kind | None, typer.Option(option.flag, help=option.help)]
