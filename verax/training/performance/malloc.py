"""Memory that is used again: on glibc, freed blocks are kept for the next step."""

from __future__ import annotations

import ctypes

# M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, M_TOP_PAD of malloc.h
_OPTIONS = {-3: 2**30, -1: 2**31 - 1, -2: 2**26}


def keep_freed_blocks() -> bool:
    """Ask the C library not to give large blocks back to the system; True if it can be asked.

    Every step of training allocates and frees the same large blocks. By default glibc returns them
    to the system each time, and every page of a fresh block costs a fault: small convolutional
    models can spend most of their time there. This setting is the whole process's, so verax never
    makes it by itself, but ``verax train`` does, and ``federate``.

    >>> keep_freed_blocks() in (True, False)
    True
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return all(mallopt(option, value) == 1 for option, value in _OPTIONS.items())
