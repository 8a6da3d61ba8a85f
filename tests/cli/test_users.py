import json

import pytest
from typer.testing import CliRunner

from verax import Mechanism, Poisson
from verax.cli import app, main
from verax.cli.users import read_counts

RUN = ["-z", "20", "--rate", "1", "--steps", "4", "--delta", "1e-5"]


@pytest.fixture
def counts(tmp_path):
    def write(text, name="counts.csv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def invoke(path, *words):
    result = CliRunner().invoke(
        app, ["users", "--counts", str(path), *RUN, *words], catch_exceptions=False
    )
    assert result.exit_code == 0
    return result.stdout


def test_a_line_for_each_user(counts):
    path = counts("user,records\na,1\nb,3\nc,1\nd,1\n")
    shown = invoke(path)
    assert "4 users, 6 records; epsilon at delta = 1e-05" in shown
    assert "75 %" in shown
    assert "every user: at most" in shown
    answer = json.loads(invoke(path, "--json"))
    run = Mechanism(Poisson(1.0, 4), 20.0)
    assert [(row["records"], row["users"]) for row in answer["rows"]] == [(1, 3), (3, 1)]
    for row in answer["rows"]:
        assert row["epsilon"]["upper"] == run.guarantee(row["records"]).epsilon(1e-5).upper
    assert (answer["users"], answer["records"], answer["within"]) == (4, 6, None)


def test_a_line_for_each_number_of_records(counts):
    # a spreadsheet's CSV, with a blank line
    text = "\ufeffrecords, users\r\n2,5\r\n\r\n 1 , 10\r\n2,1\r\n0,4\r\n"
    assert read_counts(counts(text)) == {2: 6, 1: 10, 0: 4}


def test_other_names_of_columns(counts):
    path = counts('"photos, all",people,users\n3,2,9\n"4",1,9\n')
    assert read_counts(path, "photos, all", "people") == {3: 2, 4: 1}
    assert read_counts(path, "people", "people") == {2: 1, 1: 1}


def test_who_is_within_an_epsilon(counts):
    path = counts("records,users\n1,90\n2,9\n50,1\n")
    limit = Mechanism(Poisson(1.0, 4), 20.0).guarantee(2).epsilon(1e-5).upper
    answer = json.loads(invoke(path, "--epsilon", str(limit), "--json"))
    assert answer["within"] == {"epsilon": limit, "users": 99, "most_records": 2}
    assert "99 of 100 users; with at most 2 records each, all" in invoke(
        path, "--epsilon", str(limit)
    )
    assert "0 of 100 users; not even one record is" in invoke(path, "--epsilon", "0.001")


def test_many_sizes_are_shown_as_ranges(counts):
    shown = invoke(counts("records\n" + "\n".join(map(str, range(60)))))
    assert "33 to 59" in shown
    assert "5 to 8" in shown
    assert "│ 0 " in shown


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty: it needs a header with a column 'records'"),
        ("\n\n  \n", "is empty: it needs a header with a column 'records'"),
        ("records\n", "names no user: it needs a line per user after its header"),
        ("records,users\n3,0\n", "names no user"),
        ("user,count\na,3\n", "has no column 'records', only 'user', 'count'; name it by --column"),
        ("user,records\na,3\nb,-2\n", "line 3: records must be at least 0, got '-2'"),
        ("user,records\na,three\n", "line 2: records must be a whole number, got 'three'"),
        ("user,records\na,\n", "line 2: records must be a whole number, got ''"),
        ("user,records\na,2.5\n", "line 2: records must be a whole number, got '2.5'"),
        ("user,records\na,1_000\n", "line 2: records must be a whole number, got '1_000'"),
        ("user,records\na,nan\n", "line 2: records must be a whole number, got 'nan'"),
        ("user,records\na,1e3\n", "line 2: records must be a whole number, got '1e3'"),
        ("user,records\na,٣\n", "line 2: records must be a whole number, got '٣'"),
        ("user,records\na,1000001\n", "line 2: records must be at most 1000000, got '1000001'"),
        (
            "user,records\na," + "9" * 5000 + "\n",
            f"line 2: records must be at most 1000000, got '{'9' * 37}...'",
        ),
        (
            "user,records\n\n\na,1\nb\n",
            "line 5 has 1 of the header's columns and none for 'records'",
        ),
        ("records,users\n3,-1\n", "line 2: users must be at least 0, got '-1'"),
        ("records,users\n3,99999999999999\n", "line 2: users must be at most 1000000000000"),
        (b"records\n\xff\xfe\n", "must be a CSV file in UTF-8"),
        ('records\n"3\n', "must be a CSV file"),
        (b"records\n3\x00\n", "line 2"),
    ],
)
def test_bad_files_are_one_line_that_names_the_place(text, message, counts, monkeypatch, capsys):
    path = counts(text)
    err = refused(["users", "--counts", str(path), *RUN], monkeypatch, capsys)
    assert message in err
    assert str(path) in err


def refused(words, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["verax", *words])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    out, err = capsys.readouterr()
    assert err.count("\n") == 1
    assert err.startswith("verax: ")
    assert out == ""
    return err


def test_files_that_cannot_be_read(tmp_path, monkeypatch, capsys):
    for path in (tmp_path / "none.csv", tmp_path):
        err = refused(["users", "--counts", str(path), *RUN], monkeypatch, capsys)
        assert f"--counts must be a file that can be read, got {path}" in err


def test_more_records_than_there_are(counts, monkeypatch, capsys):
    words = ["-z", "1", "--records", "10", "--batch", "5", "--epochs", "1", "--delta", "1e-5"]
    err = refused(
        ["users", "--counts", str(counts("records\n7\n4\n")), *words], monkeypatch, capsys
    )
    assert "--records must be at least 11, the sum of column 'records' of" in err
    assert err.endswith("got 10\n")
