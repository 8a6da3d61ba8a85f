"""verax serve: refusals in one line, and a server that answers and ends."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from verax.cli import main

pytest.importorskip("fastapi")
httpx = pytest.importorskip("httpx")

PROGRAM = [sys.executable, "-c", "from verax.cli import main; main()", "serve"]


@pytest.fixture
def ended(monkeypatch, capsys):
    """Exit code and standard error of a server that does not start."""

    def run(*words, token=""):
        monkeypatch.setattr(sys, "argv", ["verax", "serve", *words])
        monkeypatch.setenv("VERAX_TOKEN", token)
        with pytest.raises(SystemExit) as left:
            main()
        return left.value.code, capsys.readouterr().err

    return run


def test_others_can_listen_only_with_a_token(ended, tmp_path):
    code, said = ended("--host", "0.0.0.0")
    assert code == 2
    assert said.startswith("verax: token must be given to listen on '0.0.0.0'")
    assert said.count("\n") == 1
    code, said = ended("--host", "0.0.0.0", token="too-short")
    assert code == 2
    assert "at least 16" in said
    assert "too-short" not in said
    assert ended("--token-file", str(tmp_path / "none"))[0] == 2


def test_the_folder_must_exist(ended):
    assert ended("--runs", "no/such") == (
        2,
        "verax: runs must be a folder that exists, got 'no/such'\n",
    )


def test_a_port_that_is_taken(ended):
    with socket.create_server(("127.0.0.1", 0)) as other:
        code, said = ended("--port", str(other.getsockname()[1]))
        assert code == 2
        assert said.startswith("verax: --host and --port must be")


def test_it_answers_and_ends(tmp_path):
    (tmp_path / "token").write_text("a-secret-of-some-length\n")
    words = ["--port", "0", "--runs", str(tmp_path), "--token-file", str(tmp_path / "token")]
    process = subprocess.Popen(
        [*PROGRAM, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        address = re.search(r"http://\S+?/(?= )", process.stdout.readline()).group()
        shown = {"authorization": "Bearer a-secret-of-some-length"}
        deadline = time.monotonic() + 600
        while True:
            try:
                answer = httpx.get(f"{address}api/runs", headers=shown, timeout=30)
                break
            except httpx.TransportError:
                assert time.monotonic() < deadline
                time.sleep(0.1)
        assert answer.json() == {"folder": True, "runs": [], "written": {}}
        assert httpx.get(f"{address}api/runs").status_code == 401
    finally:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=600)
    assert process.returncode in (0, 130)
    assert "Traceback" not in err
    assert "a-secret" not in out + err
