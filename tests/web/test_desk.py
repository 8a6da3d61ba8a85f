"""What comes out of several tasks side by side when some of them fail."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("fastapi")

from verax.web.answers import Step
from verax.web.desk import Known, answer
from verax.web.pool import Busy, Crashed, Refused, Task


class FailingPool:
    """Computes nothing: every task fails, with the error of its name."""

    def __init__(self, **errors):
        self._errors = errors

    async def run(self, task, emit, seconds):
        raise self._errors[task.arguments[0]]


async def nowhere(part):
    """Parts are not what is tested here."""


def ask(**errors):
    steps = [Step.of(Task(iter, (name,), False)) for name in errors]
    asyncio.run(answer(FailingPool(**errors), Known(), steps, nowhere, 1.0))


@pytest.mark.parametrize("error", [Refused("no such plan"), Busy("too many"), Crashed("ended")])
def test_the_failure_of_the_only_step_is_raised_as_itself(error):
    with pytest.raises(type(error)) as raised:
        ask(only=error)
    assert raised.value is error


def test_a_crash_beside_another_step_is_raised_as_itself():
    with pytest.raises(Crashed):
        ask(first=Refused("no such plan"), second=Crashed("ended"))
