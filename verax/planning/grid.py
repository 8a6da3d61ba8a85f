"""Which batch sizes and epochs to look at: whole numbers, evenly spread in proportion."""

from __future__ import annotations

import math

from verax import checks

_MOST = 10_000


def spread(low: int, high: int, count: int | None = None, ratio: float = 2.0) -> list[int]:
    """Whole numbers from ``low`` to ``high`` in equal factors: ``count``, or ``ratio`` apart.

    Fewer than ``count`` where neighbours round to the same whole number.

    >>> spread(64, 8192)
    [64, 128, 256, 512, 1024, 2048, 4096, 8192]
    >>> spread(1, 100, count=5)
    [1, 3, 10, 32, 100]
    """
    low = checks.count("the start of a range", low)
    high = checks.count("the end of a range", high, minimum=low)
    if count is None:
        count = 1 + math.ceil(math.log(high / low) / math.log(ratio) - 1e-9)
    count = checks.count("the number of values of a range", count, maximum=_MOST)
    steps = max(count - 1, 1)
    values = {round(low * (high / low) ** (i / steps)) for i in range(count)}
    return sorted(values | ({high} if count > 1 else set()))


def usual_batches(records: int) -> list[int]:
    """Powers of two from about a thousandth to at most a fifth of the records.

    >>> usual_batches(60000)
    [64, 128, 256, 512, 1024, 2048, 4096, 8192]
    """
    low = max(round(math.log2(records / 1000.0)), 0) if records > 1 else 0
    high = max(math.floor(math.log2(max(records / 5.0, 1.0))), low)
    return [2**power for power in range(low, high + 1) if 2**power <= records]
