import csv

import pytest

from verax.papers import PAPERS, quiet, reproduce
from verax.papers.comparison import Row, verdict
from verax.papers.files import write_rows


@pytest.mark.parametrize(
    ("printed", "sense", "low", "high", "expected"),
    [
        ("14.45", ">=", 14.4506, 14.451, "agrees"),
        ("7.5e-5", ">=", 7.4733e-5, 7.4744e-5, "rounded up"),
        ("0.004", ">=", 0.000999, 0.127, "differs"),
        ("0.001", ">=", 0.1, 0.2, "tighter here"),
        ("3", "<=", 2.99, 2.9989, "agrees"),
        ("1.64", "<=", 0.0, 1.6517, "differs"),
        ("1.65", "<=", 0.0, 1.6517, "rounded down"),
        ("2.06e-10", "<=", 2.5e-13, 2.6e-13, "tighter here"),
        ("6.652", "~", 6.6524, 6.6525, "agrees"),
        ("6.66", "~", 6.6524, 6.6525, "differs"),
    ],
)
def test_verdicts(printed, sense, low, high, expected):
    assert verdict(printed, sense, low, high) == expected


def test_rows_are_written_with_their_names(tmp_path):
    row = Row("figure 1", "a, b", ">= 1", ">= 2", "agrees", "why")
    path = write_rows(tmp_path, [row])
    with path.open() as file:
        assert list(csv.DictReader(file)) == [
            {
                "where": "figure 1",
                "what": "a, b",
                "paper": ">= 1",
                "here": ">= 2",
                "verdict": "agrees",
                "remark": "why",
            }
        ]


def test_the_registry_runs_what_is_asked_for(tmp_path, monkeypatch):
    row = Row("", "", "", "", "agrees")
    monkeypatch.setitem(
        PAPERS, "test", lambda folder, progress: [row] if folder == tmp_path else []
    )
    assert reproduce("test", tmp_path) == [row]
    with pytest.raises(
        ValueError, match=r"paper must be one of '000-tables', .*, 'test', got 'none'"
    ):
        reproduce("none", tmp_path)
    with quiet("nothing"):
        pass
