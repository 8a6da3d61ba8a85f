"""Checks before and while a model trains: independent records, no state, no hidden gradients."""
