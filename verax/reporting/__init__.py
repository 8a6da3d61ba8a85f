"""Say it: figures now, statements and pages later."""
