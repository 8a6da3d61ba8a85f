"""kill -9 of a whole trainer: nothing is released at no charge, the sequence goes on."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("cryptography")

CRASH = Path(__file__).with_name("crash_trainer.py")


def crash(kills, folder):
    done = subprocess.run(
        [sys.executable, str(CRASH), str(kills), str(folder)],
        capture_output=True,
        text=True,
        timeout=600,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_killed_trainers_never_release_at_no_charge(tmp_path):
    found = crash(21, tmp_path)
    assert found["kills"] >= 20
    assert found["runs"] >= 1


@pytest.mark.slow
def test_killed_trainers_never_release_at_no_charge_200_times(tmp_path):
    found = crash(200, tmp_path)
    assert found["kills"] >= 200
    assert found["runs"] >= 4
