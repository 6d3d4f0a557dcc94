from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from laurel.models.hub import hub_answers


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    hub_answers.cache_clear()
    yield
    hub_answers.cache_clear()


class Refusing(BaseHTTPRequestHandler):
    def do_HEAD(self):
        self.send_error(405)

    def log_message(self, *_):
        pass


def test_any_answer_counts_and_silence_does_not(monkeypatch):
    server = HTTPServer(("127.0.0.1", 0), Refusing)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    try:
        assert hub_answers()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    hub_answers.cache_clear()
    assert not hub_answers()


def test_offline_mode_asks_nobody(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert not hub_answers()
