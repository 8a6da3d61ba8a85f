"""Copies that share nothing in which the originals could remember data."""

import threading

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from verax.training.checks.copies import independent_copies  # noqa: E402
from verax.training.gradients.loss import PerExampleLoss  # noqa: E402


def test_what_functions_close_over_is_copied_with_what_it_refers_to():
    model, seen = nn.Linear(2, 1), []

    def inner(value):
        seen.append(value)
        return model

    def loss(_, batch):
        return inner(batch)

    twin, copied = independent_copies((model, PerExampleLoss(loss)))
    assert copied._criterion(None, 1) is twin
    assert twin is not model
    assert seen == []
    assert loss(None, 2) is model
    assert seen == [2]


def test_defaults_attributes_and_functions_of_a_model_are_copied():
    def loss(outputs, targets, past=[]):  # noqa: B006
        past.append(outputs)
        loss.calls += 1
        return len(past)

    loss.calls = 0
    model = nn.Linear(2, 1)
    model.function = lambda: model.weight
    twin, copied = independent_copies((model, loss))
    assert [copied(1, 1), copied(1, 1), loss(1, 1)] == [1, 2, 1]
    assert (loss.calls, copied.calls) == (1, 2)
    assert twin.function() is twin.weight


def test_what_cannot_be_copied_is_shared_and_everything_else_is_not():
    model = nn.Sequential(nn.Linear(2, 2))
    model.lock, model.kept = threading.Lock(), torch.zeros(2)
    model.seen = model(torch.ones(1, 2))
    (twin,) = independent_copies((model,))
    assert twin.lock is model.lock
    assert twin.seen is model.seen
    assert twin.kept is not model.kept
    assert twin[0].weight is not model[0].weight


def test_other_peoples_objects_are_shared():
    class Training:
        def __init__(self):
            self.data = bytearray(10)

        def loss(self, model, batch):
            return self.data

    held = Training()
    _, method, closing = independent_copies(
        (nn.Linear(1, 1), PerExampleLoss(held.loss), lambda model, batch: held.data)
    )
    assert method._criterion(None, None) is held.data
    assert closing(None, None) is held.data


def test_things_that_fail_all_the_same_are_given_back():
    class Stubborn(nn.Module):
        def __deepcopy__(self, memo):
            raise KeyError("no")

    model = Stubborn()
    assert independent_copies((model, len)) == (model, len)


def test_data_are_shared_wherever_they_are_held():
    class Held:
        def __init__(self):
            self.data, self.past = [torch.zeros(2**23)], []

    model = nn.Linear(1, 1)
    model.held, model.records = Held(), torch.utils.data.TensorDataset(torch.zeros(3))
    large = torch.zeros(2**23)
    twin, closing = independent_copies((model, lambda: (large, model)))
    assert twin.held.data[0] is model.held.data[0]
    assert twin.held.past is not model.held.past
    assert twin.records is model.records
    assert closing()[0] is large
    assert closing()[1] is twin
