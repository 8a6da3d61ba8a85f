"""What a record becomes must not depend on how many others its batch has."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cryptography")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.data import default_collate  # noqa: E402

from verax import Batch, Individual, Mechanism, Mixed, Poisson  # noqa: E402
from verax.training import MixedRecords, fit  # noqa: E402
from verax.training.checks.batch_size import alike_at_both_sizes  # noqa: E402
from verax.training.data.containers import Column  # noqa: E402

RECORDS = 64
ROWS = [(torch.randn(6, generator=torch.Generator().manual_seed(i)), i % 2) for i in range(RECORDS)]


class Scaled(nn.Module):
    """A model whose output turns around from one batch size to the next."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(6, 2)

    def forward(self, batch):
        size = torch.as_tensor(batch.get("size", 1)).reshape(-1)[:1]
        return self.last(batch["x"] * torch.where(size % 2 == 1, 5.0, -5.0))


def loss(model, batch):
    return functional.cross_entropy(model(batch), batch["y"], reduction="none")


def trained(size, clipping, change=lambda x: x):
    def collate(rows):
        x, y = default_collate(rows)
        return {"x": change(x), "y": y} | ({} if size is None else {"size": size(len(rows))})

    torch.manual_seed(0)
    mechanism = Mechanism(Poisson(0.2, 4), 1.0, clipping)
    return fit(
        Scaled(), loss, ROWS, mechanism, lambda p: torch.optim.SGD(p, 0.1), collate_fn=collate
    )


SIZES = {
    "a number": lambda records: records,
    "a tensor": torch.tensor,
    "a column": lambda records: torch.full((records,), records),
    "numbers": lambda records: [records] * records,
    "rarely": lambda records: records // 8,
}


@pytest.mark.parametrize("clipping", [Individual(), Mixed(groups=2)])
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_the_number_of_records_in_a_batch_is_refused_in_words(size, clipping):
    with pytest.raises(MixedRecords, match="depend on how many records its batch has"):
        trained(size, clipping)


def test_it_is_found_among_random_changes():
    with pytest.raises(MixedRecords, match="depend on how many records its batch has"):
        trained(lambda records: records, Individual(), lambda x: x + 0.1 * torch.randn_like(x))


def test_a_share_of_the_batch_is_refused():
    def collate(rows):
        x, y = default_collate(rows)
        return {"x": x / len(rows), "y": y}

    with pytest.raises(MixedRecords, match="depend on how many records its batch has"):
        fit(
            Scaled(),
            loss,
            ROWS,
            Mechanism(Poisson(0.2, 4), 1.0),
            lambda p: torch.optim.SGD(p, 0.1),
            collate_fn=collate,
        )


@pytest.mark.parametrize("size", [None, lambda _: 3, lambda records: 2 * torch.arange(records) + 1])
def test_what_does_not_depend_on_it_passes(size):
    trained(size, Individual())


def test_a_whole_batch_that_is_clipped_at_once_may_know_its_size():
    trained(SIZES["a number"], Batch())


def test_shapes_that_grow_with_the_batch_are_compared_by_their_first_record():
    grown = [torch.ones(5, 2, 3)], [torch.ones(5, 3, 3)]  # the records second
    assert alike_at_both_sizes(grown[0], 2, grown[1], 3) is True
    heads = [torch.ones(8, 3)], [torch.ones(12, 3)]  # several entries for each record
    assert alike_at_both_sizes(heads[0], 2, heads[1], 3) is True
    assert alike_at_both_sizes([torch.ones(2, 2)], 2, [torch.ones(3, 3)], 3) is None
    assert alike_at_both_sizes([[torch.ones(2)] * 2], 2, [[torch.ones(2)] * 3], 3) is None
    texts = [Column(["a", "a"])], [Column(["a"] * 3)]
    assert alike_at_both_sizes(texts[0], 2, texts[1], 3) is True
