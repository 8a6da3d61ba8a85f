"""The reader of LIBSVM files that the study uses."""

import gzip
import hashlib
import importlib.util
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
SCRIPT = Path(__file__).parents[2] / "studies" / "proactive_data.py"
if not SCRIPT.exists():  # as in a source distribution
    pytest.skip("needs the folder studies", allow_module_level=True)


@pytest.fixture(scope="module")
def data():
    spec = importlib.util.spec_from_file_location("proactive_data", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_records_are_read(data):
    x, y = data.parse("-1 1:0.5 3:2\n+1 2:1 \n\n0\n", 3)
    assert x.tolist() == [[0.5, 0.0, 2.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]
    assert y.tolist() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("index", [0, 4])
def test_an_index_outside_is_refused(data, index):
    with pytest.raises(ValueError, match="record 1: indices must lie in 1 to 3"):
        data.parse(f"1 {index}:1\n", 3)


@pytest.mark.parametrize("packed", [True, False])
def test_files_are_found_and_checked(data, tmp_path, monkeypatch, packed):
    content = b"1 1:0.25\n"
    monkeypatch.setenv("VERAX_DATA", str(tmp_path))
    (tmp_path / "libsvm").mkdir()
    path = tmp_path / "libsvm" / ("phishing.gz" if packed else "phishing")
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(ValueError, match="not the official file"):
        data.read("phishing")
    monkeypatch.setitem(data.DIGESTS, "phishing", hashlib.sha256(content).hexdigest())
    x, y = data.read("phishing")
    assert x.shape == (1, 68)
    assert float(x[0, 0]) == 0.25
    assert y.tolist() == [1.0]


def test_the_folder_must_be_named(data, monkeypatch):
    monkeypatch.delenv("VERAX_DATA", raising=False)
    with pytest.raises(ValueError, match="VERAX_DATA must name a folder"):
        data.read("a9a")
