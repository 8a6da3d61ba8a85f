"""The study of clippings, on made-up images."""

import importlib.util
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cryptography")

from verax import Batch, Individual, Mixed, Poisson, Shuffle  # noqa: E402
from verax.training.data.examples import Examples  # noqa: E402

SCRIPT = Path(__file__).parents[2] / "studies" / "mnist_clippings.py"
if not SCRIPT.exists():  # as in a source distribution
    pytest.skip("needs the folder studies", allow_module_level=True)


CSV = SCRIPT.parents[1] / "docs" / "study-mnist.csv"
PAPER = {
    ("subsampling", "individual"): 98.41,
    ("subsampling", "batch"): 98.21,
    ("subsampling", "mixed"): 97.50,
    ("shuffling", "individual"): 98.38,
    ("shuffling", "batch"): 98.33,
    ("shuffling", "mixed"): 96.97,
}


@pytest.fixture(scope="module")
def study():
    spec = importlib.util.spec_from_file_location("mnist_clippings", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        yield module


@pytest.fixture(scope="module")
def data():
    """Two kinds of images: bright above, bright below."""
    made = torch.Generator().manual_seed(0)
    y = torch.arange(60) % 2
    x = 0.2 * torch.rand(60, 1, 28, 28, generator=made)
    x[y == 0, :, :14] += 0.7
    x[y == 1, :, 14:] += 0.7
    return Examples((x[:40], y[:40]), (x[40:], y[40:]), 2)


def test_cells_describe_what_runs(study):
    cell = study.Cell.read("subsampling:mixed:1024:16:0.3:4:60:0.1:0.9:tanh")
    assert (cell.rate, cell.momentum, cell.network) == (0.1, 0.9, "tanh")
    run = cell.mechanism(60_000)
    assert run.sampler == Poisson(1024 / 60_000, 58 * 60)
    assert (run.clipping, run.noise_multiplier) == (Mixed(0.3, 16), 4.0)
    run = study.Cell.read("shuffling:batch:64:1:0.01:4:2:1:0:relu").mechanism(640)
    assert (run.sampler, run.clipping, run.relation) == (Shuffle(10, 2), Batch(0.01), "zero-out")
    assert study.Cell.read("shuffling:individual:64:64:2:4:2:1:0:relu").mechanism(
        640
    ).clipping == Individual(2.0)


@pytest.mark.parametrize(
    "text", ["shuffling:batch:64", "shuffling:batch:64:1:0.01:4:2:1:0:relu:more"]
)
def test_cells_with_too_few_or_too_many_fields_are_refused(study, text):
    with pytest.raises(ValueError, match="argument 2"):
        study.Cell.read(text)


def test_every_listed_run_is_in_the_file_and_the_other_way_round(study):
    listed = [study.Cell.read(text) for text in study.CELLS]
    found = [cell for cell, _ in study.finished(CSV)]
    assert sorted(map(str, listed)) == sorted(map(str, found))


def test_the_tables_of_the_docs_are_those_of_the_file(study):
    docs = (SCRIPT.parents[1] / "docs" / "studies.md").read_text(encoding="utf-8")
    _, _, section = docs.partition("## Clippings: table 3")
    section, _, _ = section.partition("\n## ")
    for _, row in study.finished(CSV):
        assert f" {row['accuracy']} " in section, row


def test_table_3_holds_for_individual_and_mixed_clipping_and_not_for_batch_clipping(study):
    runs = dict(study.finished(CSV))
    found = {
        (c.sampling, c.clipping): float(runs[c]["accuracy"])
        for c in map(study.Cell.read, study.CELLS[:6])
    }
    for (sampling, clipping), accuracy in found.items():
        short = PAPER[sampling, clipping] - accuracy
        assert short > 10.0 if clipping == "batch" else abs(short) <= 1.0
        assert accuracy <= found[sampling, "individual"]
    divided = study.Cell.read("subsampling:batch:64:1:0.2:0.0625:100:0.025:0:tanh")
    assert abs(float(runs[divided]["accuracy"]) - PAPER["subsampling", "batch"]) <= 1.0
    assert float(runs[divided]["epsilon lower"]) > 1e4


def test_both_networks_are_lenet_5(study, data):
    counts = {
        name: sum(p.numel() for p in study.network(name, data).parameters())
        for name in ("relu", "tanh")
    }
    assert set(counts.values()) == {61_706 - 8 * 85}  # two classes in place of ten
    with pytest.raises(ValueError, match="relu or tanh, got 'selu'"):
        study.network("selu", data)


def test_a_run_learns_is_priced_and_is_not_repeated(study, data, tmp_path, monkeypatch):
    out = tmp_path / "runs.csv"
    cell = study.Cell.read("subsampling:batch:20:1:1000:0:12:0.025:0:tanh")
    study.study([cell], data, out)
    ((again, row),) = study.finished(out)
    assert again == cell
    assert float(row["accuracy"]) > 90
    assert row["epsilon upper"] == "inf"
    with monkeypatch.context() as patch:
        patch.setattr(study, "run", lambda *_: pytest.fail("ran twice"))
        study.study([cell], data, out)
    study.study([study.Cell.read("shuffling:individual:20:20:1:2:2:0.1:0.9:relu")], data, out)
    _, row = study.finished(out)[-1]
    assert 0 < float(row["epsilon lower"]) <= float(row["epsilon upper"])
