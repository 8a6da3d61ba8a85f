"""The command ``verax``; also ``python -m verax``."""

from __future__ import annotations

import sys


def main() -> None:
    """Load the commands and run one; an interrupt is one line, whenever it comes."""
    try:
        from verax.cli import main as run

        run()
    except KeyboardInterrupt:
        print("verax: interrupted", file=sys.stderr)  # noqa: T201
        sys.exit(130)


if __name__ == "__main__":
    main()
