"""Records by their numbers, whatever holds them."""

from collections import namedtuple

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cryptography")

from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from verax import Deterministic  # noqa: E402
from verax.training.data.dataset import Data, open_dataset  # noqa: E402

X = torch.arange(12.0).reshape(6, 2)
Y = torch.arange(6)
SOME = np.array([4, 1])


@pytest.mark.parametrize(
    "source",
    [
        (X, Y),
        [X, Y],
        (X.numpy(), Y.numpy()),
        [X.numpy(), Y.numpy()],
        (X, Y.numpy()),
        [X.numpy(), Y],
    ],
)
def test_tuples_and_lists_of_tensors_and_arrays_are_columns(source):
    data = Data(source)
    assert len(data) == 6
    x, y = data.take(SOME)
    assert x.equal(X[[4, 1]])
    assert y.equal(Y[[4, 1]])


def test_a_tuple_with_names_keeps_them():
    pair = namedtuple("pair", "x y")
    assert Data(pair(X.numpy(), Y)).take(SOME).x.equal(X[[4, 1]])


def test_one_array_and_dictionaries_of_arrays():
    assert Data(X.numpy()).take(SOME).equal(X[[4, 1]])
    found = Data({"x": X.numpy(), "more": {"y": Y.numpy(), "z": [Y]}}).take(SOME)
    assert found["x"].equal(X[[4, 1]])
    assert found["more"]["y"].equal(Y[[4, 1]])
    assert found["more"]["z"][0].equal(Y[[4, 1]])


@pytest.mark.filterwarnings("error")
def test_arrays_that_lie_backwards_or_cannot_be_written_to():
    fixed = X.numpy().copy()
    fixed.flags.writeable = False
    x, y = Data((fixed, Y.numpy()[::-1])).take(SOME)
    assert x.equal(X[[4, 1]])
    assert y.tolist() == [1, 4]


@pytest.mark.parametrize(
    "source", [[(x, int(y)) for x, y in zip(X, Y, strict=True)], [{"x": x} for x in X]]
)
def test_a_list_of_records_is_one_of_records(source):
    assert len(Data(source)) == 6
    found = Data(source).take(SOME)
    assert (found["x"] if isinstance(found, dict) else found[0]).equal(X[[4, 1]])


@pytest.mark.parametrize("rows", [list(X), list(X.numpy()), X, X.numpy(), tuple(X)])
def test_a_loader_has_records(rows):
    data = open_dataset(DataLoader(rows, batch_size=3), Deterministic(2))
    assert len(data) == 6
    assert data.take(SOME).equal(X[[4, 1]])


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ((X.numpy(), Y.numpy()[:3]), r"equal length, got lengths \[3, 6\]"),
        ({"x": X.numpy(), "y": Y[:3]}, "equal length"),
        (
            (X, list("abcdef")),
            "got list in column 1: turn it into a tensor, leave it out, or pass a list of records",
        ),
        (tuple((x, 0) for x in X), "got tuple in column 0"),
        ({"x": X, "name": list("abcdef")}, "got str in column 'name'"),
        ({"x": X, "name": None}, "got NoneType in column 'name'"),
        ((X, np.array(list("abcdef"))), "arrays of numbers that torch knows, got <U1 in column 1"),
        (np.array([None] * 6), "got object: "),
        ((X, torch.tensor(1.0)), "first dimension, got a single number in column 1"),
        ((X.numpy()[:0], Y.numpy()[:0]), "at least one record"),
        ({}, "at least one record"),
        ((), "at least one record"),
    ],
)
def test_what_holds_no_records_is_refused_in_words(source, words):
    with pytest.raises(ValueError, match=words):
        Data(source)


class Doubled(TensorDataset):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return 2.0 * x, y


def test_a_tensor_data_set_that_gives_something_else_is_asked_for_it():
    x, y = Data(Doubled(X, Y)).take(SOME)
    assert x.equal(2.0 * X[[4, 1]])
    assert y.equal(Y[[4, 1]])


class Array:
    """As a column of pandas or pyarrow: an array that is asked for by its labels."""

    __module__ = "pandas.core.series"

    def __init__(self, values):
        self.values = values

    def __len__(self):
        return len(self.values)

    def __getitem__(self, label):
        raise KeyError(label)

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values)


class Frame(Array):
    """As a table of pandas."""

    __module__ = "pandas.core.frame"

    def __init__(self, **held):
        super().__init__(np.stack(list(held.values()), axis=1))
        self.columns, self.held = list(held), held

    def __getitem__(self, name):
        return Array(self.held[name])


class Table(Frame):
    """As one of pyarrow, which has names of columns and columns."""

    __module__ = "pyarrow.lib"

    def __init__(self, **held):
        super().__init__(**held)
        self.column_names, self.columns = self.columns, list(held.values())


@pytest.mark.parametrize("kind", [Frame, Table])
def test_tables_of_other_libraries_are_dictionaries_of_their_columns(kind):
    found = Data(kind(a=X.numpy()[:, 0], b=Y.numpy())).take(SOME)
    assert found["a"].equal(X[[4, 1], 0])
    assert found["b"].equal(Y[[4, 1]])


def test_tables_and_columns_of_other_libraries_are_inputs_and_targets():
    x, y = Data((Frame(a=X.numpy()[:, 0], b=X.numpy()[:, 1]), Array(Y.numpy()))).take(SOME)
    assert x.equal(X[[4, 1], :2])
    assert y.equal(Y[[4, 1]])
    assert Data(Array(Y.numpy())).take(SOME).equal(Y[[4, 1]])


def test_columns_of_other_libraries_that_are_no_numbers_are_refused_by_name():
    with pytest.raises(ValueError, match="numbers that torch knows, got object in column 'name'"):
        Data(Frame(x=Y.numpy(), name=np.array(list("abcdef"), dtype=object)))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_workers": 2}, "num_workers will not be used: its records are tensors in memory"),
        (
            {"pin_memory": True, "generator": torch.Generator()},
            "pin_memory and generator will not be used",
        ),
    ],
)
def test_settings_of_a_loader_that_have_no_effect_are_warned_of(options, words):
    with pytest.warns(UserWarning, match=words):
        open_dataset(DataLoader(TensorDataset(X, Y), batch_size=3, **options), Deterministic(2))
