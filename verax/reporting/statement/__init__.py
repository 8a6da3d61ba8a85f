"""The privacy statement: its facts, text, figures, page and JSON."""

from verax.reporting.statement.statement import Statement, savable

__all__ = ["Statement", "savable"]
