"""verax audit canaries as a user meets it."""

import json
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cryptography")

from verax import cli  # noqa: E402

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A small table of two classes."""
    rng = torch.Generator().manual_seed(0)
    rows = torch.cat(
        [torch.randn(50, 3, generator=rng), torch.randint(0, 2, (50, 1), generator=rng)], 1
    ).tolist()
    path = tmp_path_factory.mktemp("data") / "table.csv"
    path.write_text("a,b,c,class\n" + "\n".join(",".join(map(str, row)) for row in rows))
    return path


@pytest.fixture
def main(monkeypatch, capsys, table):
    """The entry point: exit code, standard output, standard error."""

    def run(words):
        asked = [
            "verax",
            "audit",
            "canaries",
            "--data",
            str(table),
            "--insecure-seed",
            "1",
            *words.split(),
        ]
        monkeypatch.setattr(sys, "argv", asked)
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        return stopped.value.code, *capsys.readouterr()

    return run


def test_the_truth_is_not_refuted(main):
    code, out, err = main("-z 1 --canaries 100 --batch 20 --epochs 4")
    assert (code, err) == (0, "")
    assert "Not refuted" in out
    assert "guesses at 100 canaries" in out
    assert "on 34 records and about 50 canaries" in out


@pytest.mark.parametrize("sampler", ["poisson", "shuffle"])
def test_a_lie_is_refuted_with_exit_code_1(main, sampler):
    code, out, _ = main(
        f"-z 0.05 --canaries 100 --batch 20 --epochs 4 --epsilon 1 --sampler {sampler} --json"
    )
    told = json.loads(out)
    assert code == 1
    assert told["refuted"] is True
    assert told["lower"] > 1.0 == told["claim"]["upper"]
    assert told["evidence"] == "monte-carlo"
    assert told["right"] <= told["guesses"] <= told["canaries"] == 100


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("-z 1 --model cnn", "--model must be one of 'logistic', 'mlp', got 'cnn'"),
        ("-z 1 --canaries 1", "--canaries must be"),
        (
            "-z 1 --batch 20 --sampler without-replacement",
            "claim must be for one record under add-remove or zero-out",
        ),
        ("-z 1 --batch 20 --confidence 2", "confidence must lie strictly between"),
    ],
)
def test_bad_input_is_one_line(main, words, message):
    code, out, err = main(words)
    assert (code, out) == (2, "")
    assert err.startswith(f"verax: {message}")
    assert len(err.splitlines()) == 1
