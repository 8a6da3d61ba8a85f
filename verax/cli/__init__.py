"""The command line: one thin module per command."""

from __future__ import annotations

import sys
import warnings
from contextlib import suppress
from typing import Annotated, Any, cast

import typer
from typer import core

import verax
from verax.cli.account import account
from verax.cli.audit import audit
from verax.cli.calibrate import calibrate
from verax.cli.commands import Command, Group
from verax.cli.compare import compare
from verax.cli.demo import demo
from verax.cli.extras import missing_module
from verax.cli.federate import federate
from verax.cli.group import group
from verax.cli.plan import plan
from verax.cli.report import report
from verax.cli.reproduce import reproduce
from verax.cli.serve import serve
from verax.cli.train import train
from verax.cli.users import users
from verax.display import visible

INTERRUPTED = 130

# What typer raises for words it cannot use. Whether the class is click's or typer's own depends on
# the
# version of typer, and only the newer ones install without click; so it is reached from the
# subclass
# that every version exports: BadParameter, UsageError, ClickException.
ClickException = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[2])


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"verax {verax.__version__}")
        raise typer.Exit


app = typer.Typer(
    name="verax",
    cls=Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """DP-SGD for people who must be able to defend the epsilon they report."""


app.command(cls=Command)(account)
app.add_typer(audit, name="audit")
app.command(cls=Command)(calibrate)
app.command(cls=Command)(compare)
app.command(cls=Command)(demo)
app.command(cls=Command)(federate)
app.command(cls=Command)(group)
app.add_typer(plan, name="plan")
app.command(cls=Command)(report)
app.command(cls=Command)(reproduce)
app.command(cls=Command)(serve)
app.command(cls=Command)(users)
app.command(cls=Command)(train)


def main() -> None:
    """Run a command; bad input is one line and exit code 2, Ctrl-C one line and 130."""
    # help is plain text (no markup mode): brackets must not be escaped as if it were not
    core.HAS_RICH = False
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warned
            code = app(standalone_mode=False)
        if code == INTERRUPTED:  # what typer makes of Ctrl-C
            raise KeyboardInterrupt
    except ClickException as error:
        _refuse(error)
        sys.exit(error.exit_code)
    except (
        FileNotFoundError,
        FileExistsError,
        IsADirectoryError,
        NotADirectoryError,
        PermissionError,
    ) as error:
        _say(
            f"{error.strerror or error}: {error.filename}"
            if error.filename is not None
            else str(error)
        )
        sys.exit(2)
    except ModuleNotFoundError as error:
        _say(missing_module(error))
        sys.exit(2)
    except ValueError as error:
        _say(". ".join([str(error), *getattr(error, "__notes__", ())]))
        sys.exit(2)
    except (typer.Abort, KeyboardInterrupt):
        _say("interrupted")
        sys.exit(INTERRUPTED)
    sys.exit(code or 0)


def _refuse(error: typer.BadParameter) -> None:
    """Say what is wrong with a command's words, or show the help if there are none."""
    context, message = getattr(error, "ctx", None), error.format_message()
    if context is None:
        _say(message)
    elif message == context.get_help():
        error.show()
    else:
        end = "" if message.endswith((".", "?")) else "."
        _say(f"{message}{end} See {context.command_path} --help")


def _warned(message: Warning | str, *args: Any, **where: Any) -> None:
    """Print a warning as one line, without its place in the source."""
    _say(str(message))


def _say(words: str) -> None:
    """Print one line on standard error if there is one; never fail."""
    if sys.stderr is not None:
        with suppress(OSError):
            print(f"verax: {visible(' '.join(words.split()))}", file=sys.stderr)  # noqa: T201
