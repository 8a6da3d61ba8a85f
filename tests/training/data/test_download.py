"""Files are fetched once, checked always."""

import hashlib
import http.server
import threading

import pytest

pytest.importorskip("torch")

from verax.training.data.download import obtain

CONTENT = b"some public records"
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A web server on this machine, and how often it was asked."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(200 if self.path != "/missing" else 404)
            self.end_headers()
            self.wfile.write(CONTENT)

        def log_message(self, *_):
            pass

    listening = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever)
    thread.start()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("VERAX_DATA", raising=False)
    yield f"http://127.0.0.1:{listening.server_port}", asked
    listening.shutdown()
    thread.join()
    listening.server_close()


def test_fetched_once_and_again_if_damaged(server, tmp_path):
    address, asked = server
    assert obtain("set/file", f"{address}/file", DIGEST) == CONTENT
    assert obtain("set/file", f"{address}/file", DIGEST) == CONTENT
    assert len(asked) == 1
    (tmp_path / "cache" / "verax" / "set" / "file").write_bytes(b"damaged")
    assert obtain("set/file", f"{address}/file", DIGEST) == CONTENT
    assert len(asked) == 2


def test_another_file_at_the_address_is_refused_and_not_kept(server, tmp_path):
    address, _ = server
    with pytest.raises(ValueError, match="not the official file"):
        obtain("set/file", f"{address}/file", "0" * 64)
    assert not (tmp_path / "cache" / "verax" / "set" / "file").exists()


def test_no_answer_says_what_to_do(server):
    address, _ = server
    with pytest.raises(ValueError, match="VERAX_DATA"):
        obtain("set/file", f"{address}/missing", DIGEST)


def test_a_folder_comes_first(server, tmp_path, monkeypatch):
    address, asked = server
    monkeypatch.setenv("VERAX_DATA", str(tmp_path))
    with pytest.raises(ValueError, match="cannot be read"):
        obtain("file", f"{address}/file", DIGEST)
    (tmp_path / "file").write_bytes(CONTENT)
    assert obtain("file", f"{address}/file", DIGEST) == CONTENT
    (tmp_path / "file").write_bytes(b"edited")
    with pytest.raises(ValueError, match="SHA-256"):
        obtain("file", f"{address}/file", DIGEST)
    assert not asked
