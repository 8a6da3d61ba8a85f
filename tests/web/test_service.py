"""What comes out of several tasks side by side when some of them fail."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("fastapi")

from verax.web.service import AnswerCache, Step, answer
from verax.web.worker import RequestRefused, ServerBusy, Task, WorkerCrashed


class FailingPool:
    """Computes nothing: every task fails, with the error of its name."""

    def __init__(self, **errors):
        self._errors = errors

    async def run(self, task, emit, seconds):
        raise self._errors[task.arguments[0]]


async def nowhere(part):
    """Parts are not what is tested here."""


def ask(**errors):
    steps = [Step({}, Task(iter, (name,), False)) for name in errors]
    asyncio.run(answer(FailingPool(**errors), AnswerCache(), steps, nowhere, 1.0))


@pytest.mark.parametrize(
    "error", [RequestRefused("no such plan"), ServerBusy("too many"), WorkerCrashed("ended")]
)
def test_the_failure_of_the_only_step_is_raised_as_itself(error):
    with pytest.raises(type(error)) as raised:
        ask(only=error)
    assert raised.value is error


def test_a_crash_beside_another_step_is_raised_as_itself():
    with pytest.raises(WorkerCrashed):
        ask(first=RequestRefused("no such plan"), second=WorkerCrashed("ended"))
