"""Arithmetic that bounds stand on: every value comes with a proved error."""
