"""Options as frozen objects: a command takes one value where it would take a dozen parameters.

A command that is decorated with :func:`flat` may have parameters whose type is a dataclass: every
field of it becomes an option. Options of samplers come from the registry, so that a new sampler
brings its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from enum import StrEnum
from functools import wraps
from typing import Annotated, Any, get_type_hints

import typer

from verax import Batch, Individual, Mechanism, Mixed
from verax.mechanism import Clipping
from verax.samplers import registry
from verax.samplers.base import Sampler
from verax.samplers.options import SHARED, Option, all_options, build


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


SamplerOption = Annotated[
    str, typer.Option("--sampler", help=f"Who is in each batch: {', '.join(registry.names())}.")
]
ClippingOption = Annotated[
    ClippingName, typer.Option("--clipping", help="What is clipped before noise is added.")
]
ClipGroups = Annotated[int, typer.Option(help="Number of clip-groups, for mixed clipping.")]
Relation = Annotated[
    RelationName | None, typer.Option(help="Neighbouring relation; default: the sampler's own.")
]


@dataclass(frozen=True)
class RunOptions:
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

    def build_clipping(self) -> Clipping:
        """The clipping; clip-groups are refused where it has none."""
        return clippings_by_name(self.clip_groups, [self.clipping.value])[self.clipping.value]

    @property
    def relation_name(self) -> str:
        """The relation, or nothing for the sampler's own."""
        return self.relation.value if self.relation else ""


def clippings_by_name(clip_groups: int, named: list[str]) -> dict[str, Clipping]:
    """Every clipping by its name; clip-groups are refused without mixed clipping."""
    if clip_groups != 1 and ClippingName.mixed.value not in named:
        raise ValueError(
            f"--clip-groups {clip_groups} is for --clipping mixed, got --clipping "
            f"{','.join(named)}: leave one of them out"
        )
    return {"individual": Individual(), "batch": Batch(), "mixed": Mixed(groups=clip_groups)}


def with_norm(clipping: Clipping, norm: float) -> Clipping:
    """The same clipping to another norm."""
    return replace(clipping, norm=norm)


def flat(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with one option per field of its dataclass or sampler-flag parameters."""
    hints = get_type_hints(command, include_extras=True)
    own = inspect.signature(command).parameters
    flattened: list[inspect.Parameter] = []
    for name, parameter in own.items():
        flattened += _expanded(name, hints[name], parameter.default)

    @wraps(command)
    def called(**given: Any) -> Any:
        return command(**{name: _gathered(name, hints[name], given) for name in own})

    called.__signature__ = inspect.Signature(flattened)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in flattened}
    del called.__wrapped__
    return called


def _expanded(name: str, hint: Any, default: Any) -> list[inspect.Parameter]:
    """The parameters that stand for one of this type."""
    if isinstance(hint, type) and issubclass(hint, SamplerFlags):
        return [
            _parameter(option.parameter, _optional(kind, option), None)
            for kind, option in hint.flags().values()
        ]
    if isinstance(hint, type) and is_dataclass(hint):
        inner = get_type_hints(hint, include_extras=True)
        return [
            one
            for part in fields(hint)
            for one in _expanded(part.name, inner[part.name], _default(part))
        ]
    return [_parameter(name, hint, default)]


def _gathered(name: str, hint: Any, given: Mapping[str, Any]) -> Any:
    """The value of this type, put together from what was typed."""
    if isinstance(hint, type) and issubclass(hint, SamplerFlags):
        return hint({flag: given[option.parameter] for flag, (_, option) in hint.flags().items()})
    if isinstance(hint, type) and is_dataclass(hint):
        inner = get_type_hints(hint, include_extras=True)
        return hint(
            **{part.name: _gathered(part.name, inner[part.name], given) for part in fields(hint)}
        )
    return given[name]


def _default(part: Field[Any]) -> Any:
    return inspect.Parameter.empty if part.default is MISSING else part.default


def _parameter(name: str, hint: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _optional(kind: type, option: Option) -> Any:
    if kind is bool:
        return Annotated[
            bool | None, typer.Option(option.flag, help=option.help, show_default=False)
        ]
    return Annotated[kind | None, typer.Option(option.flag, help=option.help)]
