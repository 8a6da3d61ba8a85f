"""Text from elsewhere, a file or its name, as it may be shown to people."""

from __future__ import annotations


def visible(text: str) -> str:
    r"""The text with whatever a terminal or a page would obey, and not show, written as an escape.

    That is control and format characters: colours and cursor moves, line ends, and whatever turns
    the direction of writing.

    >>> print(visible("run\x1b[2J\u202e.ledger"))
    run\x1b[2J\u202e.ledger
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
