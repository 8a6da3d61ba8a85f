"""Say it: statements as prose, JSON and pages; tables and figures."""
