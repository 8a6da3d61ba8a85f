"""Worker processes of a loader fetch the records of batches that the mechanism's sampler draws."""

import multiprocessing

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cryptography")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, Dataset, default_collate, get_worker_info  # noqa: E402

from verax import Batch, Individual, Mechanism, Mixed, Shuffle  # noqa: E402
from verax.training import MixedRecords, fit  # noqa: E402
from verax.training.data.workers import Workers, _packed  # noqa: E402

torch.set_num_threads(1)
EACH = Individual()
X, Y = torch.randn(24, 3, generator=torch.Generator().manual_seed(1)), torch.arange(24) % 2


class PerExampleGradients(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, number):
        return X[number], Y[number]


class Many(PerExampleGradients):
    """Gives several records at once."""

    def __getitems__(self, numbers):
        return [self[number] for number in numbers]


class Where(PerExampleGradients):
    """Says by which worker a record was fetched; the third cannot be."""

    def __getitem__(self, number):
        if number == 2:
            raise KeyError("no such file")
        worker = get_worker_info()
        return number, None if worker is None else worker.id


def padded(records):
    return default_collate(records)


def weights(source, clipping=EACH, **options):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    mechanism = Mechanism(Shuffle(batches=4, epochs=2), 1.0, clipping)
    loader = DataLoader(source, batch_size=6, shuffle=True, **options)
    fit(
        model,
        nn.CrossEntropyLoss(),
        loader,
        mechanism,
        lambda p: torch.optim.SGD(p, 0.1),
        insecure_seed=5,
    )
    return nn.utils.parameters_to_vector(model.parameters()).detach()


@pytest.mark.parametrize(
    "clipping", [Individual(), Batch(), Mixed(groups=2)], ids=lambda c: type(c).__name__
)
@pytest.mark.parametrize(
    ("source", "collate_fn"),
    [(PerExampleGradients(), None), (PerExampleGradients(), padded), (Many(), None)],
)
def test_a_run_is_the_same_with_workers_and_without(source, collate_fn, clipping):
    alone, helped = (
        weights(source, clipping, collate_fn=collate_fn, num_workers=n) for n in (0, 2)
    )
    assert alone.equal(helped)
    assert multiprocessing.active_children() == []  # they ended with the run


def test_records_come_in_order_from_all_workers_and_a_failure_is_heard():
    workers = Workers(DataLoader(Where(), batch_size=6, num_workers=2))
    assert workers.fetch([5, 4, 9]) == [(5, 0), (4, 0), (9, 1)]
    before = {child.pid for child in multiprocessing.active_children()}
    with pytest.raises(KeyError, match="no such file"):
        workers.fetch([1, 2, 3])
    assert workers.fetch([7]) == [(7, 0)]
    assert {child.pid for child in multiprocessing.active_children()} == before  # they stay
    workers.close()
    assert multiprocessing.active_children() == []
    assert workers.fetch([7, 8]) == [(7, 0), (8, 1)]
    workers.close()


def test_fetching_leaves_the_generators_of_this_process_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state(), np.random.get_state()[1].tobytes()  # noqa: NPY002
    workers = Workers(DataLoader(PerExampleGradients(), batch_size=6, num_workers=1))
    workers.fetch([0, 1])
    workers.close()
    assert torch.get_rng_state().equal(before[0])
    assert np.random.get_state()[1].tobytes() == before[1]  # noqa: NPY002


def test_a_record_that_is_part_of_a_large_tensor_travels_alone():
    large = torch.zeros(100_000, 3)
    assert len(_packed([large[7]])) < 2000


class Standardised(PerExampleGradients):
    def __getitems__(self, numbers):
        chosen = X[numbers] / X[numbers].norm()
        return list(zip(chosen, Y[numbers], strict=True))


def test_workers_that_mix_records_are_found_out():
    with pytest.raises(MixedRecords):
        weights(Standardised(), num_workers=2)
