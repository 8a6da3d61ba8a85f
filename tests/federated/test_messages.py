"""Messages: there and back, and nothing else is one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from verax.federated.messages import BadMessage, Model, Receipt, Update, unpack

RUN = bytes(range(16))
counts = st.integers(0, 2**63 - 1)
values = hnp.arrays(np.float32, st.integers(0, 40), elements=st.floats(width=32))


def same(a, b):
    assert type(a) is type(b)
    for name in a.__dataclass_fields__:
        x, y = getattr(a, name), getattr(b, name)
        assert np.array_equal(x, y, equal_nan=True) if isinstance(x, np.ndarray) else x == y


@given(counts, counts, values, st.floats(0.0, 1e300))
def test_there_and_back(a, b, numbers, seen):
    for message in (Model(RUN, a, numbers), Update(RUN, a, b, numbers, seen), Receipt(RUN, a, b)):
        same(unpack(message.pack()), message)


@given(st.binary(max_size=80))
def test_anything_else_is_refused_and_never_runs(content):
    try:
        unpack(content)
    except BadMessage:
        return
    assert content.startswith(b"VRX1")


@given(st.data(), values)
def test_a_message_cut_or_lengthened_inside_a_number_is_refused(data, numbers):
    whole = Update(RUN, 1, 2, numbers).pack()
    cut = data.draw(st.integers(0, len(whole) - 1))
    if cut < 45 or (cut - 45) % 4:
        with pytest.raises(BadMessage):
            unpack(whole[:cut])
    with pytest.raises(BadMessage):
        unpack(whole + b"x")
    with pytest.raises(BadMessage):
        unpack(Receipt(RUN, 1, 2).pack() + b"0000")


def test_values_are_copied_and_frozen():
    mine = np.ones(3, dtype=np.float32)
    message = Update(RUN, 0, 0, mine)
    mine[0] = 7.0
    assert message.values.tolist() == [1.0, 1.0, 1.0]
    with pytest.raises(ValueError, match="read-only"):
        message.values[0] = 2.0


@pytest.mark.parametrize(
    "make",
    [
        lambda: Model(b"short", 0, np.zeros(1, np.float32)),
        lambda: Model(RUN, -1, np.zeros(1, np.float32)),
        lambda: Model(RUN, 0, np.zeros(1)),
        lambda: Update(RUN, 0, 0, np.zeros((2, 2), np.float32)),
        lambda: Update(RUN, 0, 0, np.zeros(2, np.float32), seen=float("nan")),
        lambda: Update(RUN, True, 0, np.zeros(2, np.float32)),
        lambda: Receipt(RUN, 0, 1.5),
    ],
)
def test_bad_fields_are_refused(make):
    with pytest.raises(BadMessage):
        make()
