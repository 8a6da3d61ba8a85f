"""Who may ask: host names, other sites, tokens; headers; the folder of ledgers; uploads."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

pytest.importorskip("fastapi")

from verax import Mechanism, Poisson
from verax.ledger.ledger import read
from verax.ledger.run import compose
from verax.training import Ledger
from verax.web import ledgers, pages
from verax.web.app import STATIC, create_app
from verax.web.auth import HEADERS
from verax.web.settings import Settings

TOKEN = "a-secret-of-some-length"


@pytest.fixture(scope="module")
def quiet(asked):
    """Asked in this process; nothing is computed, so no process is started."""
    return asked(create_app(Settings()), "http://localhost")


@pytest.fixture(scope="module")
def locked(asked):
    app = create_app(Settings(host="0.0.0.0", token=TOKEN, names=("verax.example",)))
    return asked(app, "http://verax.example")


class TestHosts:
    @pytest.mark.parametrize(
        "host", ["localhost", "localhost:8321", "127.0.0.1:80", "[::1]:8321", "LOCALHOST"]
    )
    def test_ours(self, quiet, host):
        assert quiet.get("/api/about", headers={"host": host}).status_code == 200

    @pytest.mark.parametrize(
        "host",
        [
            "evil.example",
            "localhost.evil.example",
            "evil.example:8321",
            "",
            "a@localhost",
            "localhost:x",
            "[::",
        ],
    )
    def test_others_are_refused(self, quiet, host):
        for path in ("/", "/api/about", "/static/common.js"):
            response = quiet.get(path, headers={"host": host})
            assert response.status_code == 421
            assert "host name" in response.json()["message"]


class TestOtherSites:
    @pytest.mark.parametrize(
        "headers",
        [
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site"},
            {"origin": "http://evil.example"},
            {"origin": "null"},
            {"origin": "http://["},
            {"origin": ""},
            {"origin": "http://[::1"},
        ],
    )
    def test_are_refused(self, quiet, headers):
        answer = quiet.get("/api/about", headers=headers)
        assert answer.status_code == 403
        assert HEADERS.items() <= dict(answer.headers).items()

    def test_our_own_pages_are_not(self, quiet):
        ours = {"sec-fetch-site": "same-origin", "origin": "http://localhost"}
        assert quiet.get("/api/about", headers=ours).status_code == 200

    def test_nobody_is_invited(self, quiet):
        answer = quiet.get("/api/about", headers={"origin": "http://localhost"})
        assert not [name for name in answer.headers if name.startswith("access-control")]


class TestHeaders:
    @pytest.mark.parametrize(
        "path",
        ["/", "/plan", "/api/about", "/static/style.css", "/nothing", "/api/compare?batch=0"],
    )
    def test_every_answer_has_them(self, quiet, path):
        answer = quiet.get(path)
        for name, value in HEADERS.items():
            assert answer.headers[name] == value
        assert "unsafe" not in answer.headers["content-security-policy"]

    def test_nothing_comes_from_outside(self):
        files = [*STATIC.iterdir(), *(Path(pages.__file__).parent / "templates").glob("*.html")]
        for path in files:
            text = path.read_text()
            for start in ("http://", "https://", "//cdn"):
                found = text.replace("http://www.w3.org/2000/svg", "")
                assert start not in found, path
            assert " style=" not in text
            assert "innerHTML" not in text
        assert {f"{name}.html" for name in pages.TITLES} <= {path.name for path in files}

    def test_a_browser_gets_a_page_and_a_program_json(self, quiet):
        browser = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
        answer = quiet.get("/nothing<b>", headers=browser)
        assert answer.status_code == 404
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert "<h1>Not Found</h1>" in answer.text
        assert "There is no page at this address" in answer.text
        assert 'href="/plan"' in answer.text
        assert "<script" not in answer.text
        assert HEADERS.items() <= dict(answer.headers).items()
        for path in ("/api/nothing", "/static/nothing.js", "/api/compare?batch=0"):
            assert quiet.get(path, headers=browser).json()["message"]
        refused = quiet.get("/", headers=browser | {"host": "evil.example"})
        assert refused.status_code == 421
        assert "host name" in refused.text
        assert refused.text.startswith("<!doctype html>")

    def test_unknown_addresses_and_methods_are_messages(self, quiet):
        assert quiet.get("/nothing").json() == {"message": "Not Found"}
        assert quiet.delete("/api/about").status_code == 405
        assert quiet.get("/static/../app.py").status_code == 404
        assert quiet.get("/static/%2e%2e/app.py").status_code == 404


class TestToken:
    def test_nothing_without_it(self, locked):
        assert locked.get("/api/about").status_code == 401
        assert locked.get("/api/openapi.json").status_code == 401
        assert locked.get("/static/common.js").status_code == 401
        answer = locked.get("/plan?records=5")
        assert (answer.status_code, answer.headers["location"]) == (303, "/login")
        assert locked.get("/login").status_code == 200

    @pytest.mark.parametrize(
        "word", ["Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer", "Bearer é"]
    )
    def test_a_wrong_one_is_refused(self, locked, word):
        assert locked.get("/api/about", headers={"authorization": word.encode()}).status_code == 401

    def test_a_program_shows_it(self, locked):
        assert (
            locked.get("/api/about", headers={"authorization": f"Bearer {TOKEN}"}).status_code
            == 200
        )

    def test_a_browser_logs_in(self, locked):
        assert locked.post("/api/login", json={"token": "wrong"}).status_code == 401
        answer = locked.post("/api/login", json={"token": TOKEN})
        assert answer.status_code == 200
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "samesite=strict" in cookie.lower()
        assert TOKEN not in cookie
        shown = {"cookie": cookie.partition(";")[0]}
        assert locked.get("/api/about", headers=shown).status_code == 200
        assert (
            locked.get("/api/about", headers={"cookie": "verax_session=wrong"}).status_code == 401
        )

    def test_a_long_body_is_refused_while_it_comes(self, locked):
        """Whoever has no token may send anything to the login; little of it is read."""
        taken = 0

        async def endless():
            nonlocal taken
            while True:
                taken += 1000
                yield b"x" * 1000

        for path in ("/api/login", "/api/login/", "/api/runs"):
            shown = {"authorization": f"Bearer {TOKEN}"}
            answer = locked.post(path, content=b"x" * 5000, headers=shown)
            assert answer.status_code in (413, 405, 307)
            assert HEADERS.items() <= dict(answer.headers).items()
        answer = locked.post("/api/login", content=endless())
        assert answer.status_code == 413
        assert "at most 4096 bytes" in answer.json()["message"]
        assert taken <= 6000

    def test_settings_ask_for_one_where_others_can_listen(self):
        for host in ("0.0.0.0", "::", "192.168.1.2", "verax.example"):
            with pytest.raises(ValueError, match="token must be given"):
                Settings(host=host)
        for host in ("127.0.0.1", "127.3.2.1", "::1", "localhost"):
            assert Settings(host=host).token == ""
        with pytest.raises(ValueError, match="at least 16"):
            Settings(token="short")


class TestFolder:
    def test_its_ledgers_are_listed(self, client):
        answer = client.get("/api/runs").json()
        assert answer["folder"] is True
        assert {"whole.ledger", "part.ledger"} <= set(answer["runs"])
        assert "link.ledger" not in answer["runs"]

    @pytest.mark.parametrize(
        "name",
        [
            "../outside.ledger",
            "/etc/passwd",
            "link.ledger",
            "part.log",
            "nothing.ledger",
            "a\x00b.ledger",
            "x" * 400,
            ".",
            "whole.ledger/../../outside.ledger",
        ],
    )
    def test_nothing_else_is_read(self, client, name):
        for path in ("/api/run", "/api/run/stream", "/api/run/statement"):
            assert client.get(path, params={"name": name}).status_code == 404

    def test_without_a_folder_there_is_nothing(self, quiet):
        assert quiet.get("/api/runs").json() == {"folder": False, "runs": [], "written": {}}
        assert quiet.get("/api/run", params={"name": "whole.ledger"}).status_code == 404

    def test_a_run_is_what_the_ledger_says(self, client, folder):
        answer = client.get("/api/run", params={"name": "part.ledger"}).json()
        run = read(folder / "part.ledger")
        assert (answer["released"], answer["declared"], answer["over"]) == (10, 40, False)
        assert answer["epsilon"]["upper"] == run.guarantee().epsilon(1e-5).upper
        assert answer["spent"]["upper"] == run.guarantee(stopping="independent").epsilon(1e-5).upper
        assert answer["head"] == run.head
        assert answer["log"] == [{"name": "accuracy", "points": [[5, 0.5], [10, 0.75]]}]
        assert str(folder) not in json.dumps(answer)
        rising = [point["epsilon"]["upper"] for point in answer["points"]]
        assert rising == sorted(rising)
        assert answer["points"][-1]["rounds"] == 40

    def test_statements(self, client, folder):
        names = ["whole.ledger", "part.ledger"]
        answer = client.get(
            "/api/run/statement", params={"name": names, "format": "json", "delta": 1e-6}
        )
        assert "attachment" in answer.headers["content-disposition"]
        runs = [read(folder / name) for name in names]
        assert answer.json()["delta"] == 1e-6
        assert [run["run"] for run in answer.json()["runs"]] == [run.id for run in runs]
        assert str(folder) not in answer.text
        prose = client.get(
            "/api/run/statement", params={"name": "seeded.ledger", "format": "txt"}
        ).text
        assert "NOT private" in prose
        twice = client.get("/api/run/statement", params={"name": ["whole.ledger", "whole.ledger"]})
        assert twice.status_code == 422
        assert "copies of one run" in twice.json()["message"]

    def test_several_runs_are_priced_together(self, client, folder):
        names = ["whole.ledger", "part.ledger"]
        answer = client.get(
            "/api/run/together", params={"name": names, "delta": 1e-6, "group": 2}
        ).json()
        runs = [read(folder / name) for name in names]
        assert answer["epsilon"]["upper"] == compose(runs, 2).epsilon(1e-6).upper
        assert (
            answer["spent"]["upper"] == compose(runs, 2, stopping="independent").epsilon(1e-6).upper
        )
        assert [row["name"] for row in answer["runs"]] == names
        assert [row["over"] for row in answer["runs"]] == [True, False]
        alone = runs[1].guarantee(2).epsilon(1e-6).upper
        assert answer["runs"][1]["epsilon"]["upper"] == alone < answer["epsilon"]["upper"]
        twice = client.get("/api/run/together", params={"name": ["whole.ledger", "whole.ledger"]})
        assert "copies of one run" in twice.json()["message"]
        assert (
            client.get("/api/run/together", params={"name": ["whole.ledger", "../x"]}).status_code
            == 404
        )

    def test_of_two_names_none_is_dropped(self, client):
        for path in ("/api/run", "/api/run/stream"):
            answer = client.get(path, params={"name": ["whole.ledger", "part.ledger"]})
            assert answer.status_code == 422
            assert (
                "name must be given once, got 2 values; /api/run/together"
                in answer.json()["message"]
            )

    def test_when_ledgers_were_written_is_listed(self, client, folder):
        written = client.get("/api/runs").json()["written"]
        assert written["whole.ledger"] == (folder / "whole.ledger").stat().st_mtime

    def test_damage_is_told(self, client):
        answer = client.get("/api/run", params={"name": "damaged.ledger"})
        assert answer.status_code == 422
        assert "damaged.ledger" in answer.json()["message"]


class TestSent:
    def test_a_ledger_is_read_and_stated(self, client, folder):
        content = (folder / "whole.ledger").read_bytes()
        answer = client.post("/api/run", content=content, params={"group": 2}).json()
        assert (answer["complete"], answer["group"], answer["log"]) == (True, 2, [])
        page = client.post("/api/run/statement", content=content)
        assert page.text.startswith("<!doctype html>")

    @pytest.mark.parametrize(
        "content", [b"", b"\x00\xff", b"{}\n", b"[" * 5000, b'{"verax_ledger":9}\n']
    )
    def test_rubbish_is_refused_in_words(self, client, content):
        for path in ("/api/run", "/api/run/statement"):
            answer = client.post(path, content=content)
            assert answer.status_code == 422
            assert "the ledger" in answer.json()["message"]

    def test_a_ledger_of_clients_says_so(self, client, tmp_path):
        Ledger.create(
            tmp_path / "clients.ledger", Mechanism(Poisson(0.05, 40), 1.2), unit="client"
        ).close()
        content = (tmp_path / "clients.ledger").read_bytes()
        assert client.post("/api/run", content=content).json()["unit"] == "client"
        told = client.post("/api/run/statement", content=content, params={"format": "json"}).json()
        assert told["protected"]["unit"] == "client"

    def test_a_large_one_is_refused_early(self, client):
        def endless():
            for _ in range(10_000):
                yield b"x" * 10_000

        try:
            answer = client.post("/api/run", content=endless())
        except httpx.WriteError:
            return  # the server hung up while we were still sending
        assert answer.status_code == 413

    def test_names_stay_inside(self, folder):
        assert ledgers.path_inside(folder, "whole.ledger") == (folder / "whole.ledger").resolve()
        assert ledgers.path_inside(folder, "../runs0/whole.txt") is None
