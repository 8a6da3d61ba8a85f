"""Commands that refuse repeated options and empty words: nothing typed is ignored."""

from __future__ import annotations

from collections import Counter
from typing import Any

import typer
from typer import core


def _refuse_repeated_or_empty(command: Any, context: typer.Context, words: list[str]) -> None:
    """Refuse an option given twice, of which only the last would count, or left empty."""
    values, _, order = command.make_parser(context).parse_args(list(words))
    for parameter, times in Counter(order).items():
        if (
            times > 1
            and isinstance(parameter, core.TyperOption)
            and not (parameter.multiple or parameter.count)
        ):
            raise ValueError(f"{parameter.opts[0]} must be given once, got it {times} times")
        # an empty path would be the current folder: what a script's unset variable leaves behind
        value = values.get(parameter.name)
        if "" in (value if isinstance(value, list) else [value]) and parameter.default != "":
            raise ValueError(f"{parameter.opts[0]} must not be empty")


class Command(core.TyperCommand):
    """A command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """What the words mean."""
        _refuse_repeated_or_empty(self, ctx, args)
        return super().parse_args(ctx, args)


class Group(core.TyperGroup):
    """A command with commands of its own."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """What the words before the inner command mean."""
        _refuse_repeated_or_empty(self, ctx, args)
        return super().parse_args(ctx, args)
