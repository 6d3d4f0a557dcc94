from __future__ import annotations

import threading
import time
from fnmatch import fnmatchcase
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from laurel.config.tree import Model
from laurel.models import hub as room
from laurel.models.hub import fetch, fetch_tokenizer, hub_answers, published_config
from laurel.types import LaurelError


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


COMMIT = "0123abcd"


class Hub:
    """Stands in for the hub's client: writes a snapshot into the cache as it does, and remembers each call."""

    def __init__(self, cache: Path, files: dict[str, str], *, slow: float = 0.0):
        self.repository, self.files, self.slow = cache / "models--org--name", files, slow
        self.calls: list[dict] = []
        self.running = self.most_at_once = 0

    def snapshot_download(self, path, *, allow_patterns, ignore_patterns, local_files_only):
        self.running += 1
        self.most_at_once = max(self.most_at_once, self.running)
        time.sleep(self.slow)
        self.calls.append({"path": path, "patterns": allow_patterns, "offline": local_files_only})
        snapshot = self.repository / "snapshots" / COMMIT
        if not local_files_only:
            snapshot.mkdir(parents=True, exist_ok=True)
            (self.repository / "refs").mkdir(exist_ok=True)
            (self.repository / "refs" / "main").write_text(COMMIT)
            for name, text in self.files.items():
                allowed = any(fnmatchcase(name, pattern) for pattern in allow_patterns)
                if allowed and not any(fnmatchcase(name, pattern) for pattern in ignore_patterns):
                    (snapshot / name).write_text(text)
        self.running -= 1
        return str(snapshot)


FILES = {
    "config.json": '{"model_type": "llama"}',
    "tokenizer.json": "{}",
    "chat_template.jinja": "",
    "merges.txt": "",
    "model.safetensors": "",
    "pytorch_model.bin": "",
    "consolidated.safetensors": "",
    "original/params.json": "",
    "modeling_own.py": "",
    "README.md": "",
}


@pytest.fixture
def hub(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(room, "hub_answers", lambda: True)
    monkeypatch.setattr(room, "_fetched", {})
    stand_in = Hub(tmp_path / "hub", FILES)
    monkeypatch.setattr("huggingface_hub.snapshot_download", stand_in.snapshot_download)
    return stand_in


def names(folder):
    return {path.name for path in Path(folder).iterdir()}


def test_a_hub_id_is_fetched_once_and_said(hub):
    said = []
    folder = fetch(Model(path="org/name"), say=said.append)
    assert names(folder) == {"config.json", "tokenizer.json", "chat_template.jinja", "merges.txt", "model.safetensors"}
    assert len(said) == 1
    assert said[0].startswith("fetching org/name once on this node")
    assert fetch(Model(path="org/name"), say=said.append) == folder
    assert (len(hub.calls), len(said)) == (1, 1)


def test_a_process_that_comes_later_asks_whether_it_is_up_to_date_and_says_nothing(hub, monkeypatch):
    fetch(Model(path="org/name"), say=lambda line: None)
    monkeypatch.setattr(room, "_fetched", {})
    said = []
    fetch(Model(path="org/name"), say=said.append)
    assert (len(hub.calls), said) == (2, [])


def test_code_comes_only_if_it_is_trusted(hub):
    assert "modeling_own.py" in names(fetch(Model(path="org/name", trust_remote_code=True), say=print))


def test_older_weights_are_taken_where_there_are_no_others(hub):
    hub.files = {name: text for name, text in FILES.items() if not name.endswith(".safetensors")}
    assert "pytorch_model.bin" in names(fetch(Model(path="org/name"), say=print))


def test_a_tokenizer_comes_without_weights(hub):
    folder = fetch_tokenizer(Model(path="/some/model", tokenizer_path="org/name"), say=print)
    assert names(folder) == {"config.json", "tokenizer.json", "chat_template.jinja", "merges.txt"}


def test_processes_of_a_node_fetch_one_after_the_other(hub, monkeypatch):
    """Threads hold the lock each through a file of its own, as processes do."""
    hub.slow = 0.1
    monkeypatch.setattr(room, "SAID_EVERY", 0.05)
    said = []
    threads = [
        threading.Thread(target=lambda: room._from_hub("org/name", code=False, weights=True, say=said.append))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(hub.calls), hub.most_at_once) == (3, 1)
    assert len([line for line in said if line.startswith("fetching")]) == 1
    assert any("for another process of this node to fetch org/name" in line for line in said)


def test_without_a_network_the_cache_serves_or_the_error_says_what_to_do(hub, monkeypatch):
    monkeypatch.setattr(room, "hub_answers", lambda: False)
    with pytest.raises(LaurelError, match=r"'org/name' is not in this node's cache .* give a local folder"):
        fetch(Model(path="org/name"))
    assert hub.calls == []
    monkeypatch.setattr(room, "hub_answers", lambda: True)
    folder = fetch(Model(path="org/name"), say=print)
    monkeypatch.setattr(room, "hub_answers", lambda: False)
    monkeypatch.setattr(room, "_fetched", {})
    assert fetch(Model(path="org/name")) == folder
    assert hub.calls[-1]["offline"] is True


def test_what_the_client_says_comes_with_the_cure(hub, monkeypatch):
    def refuse(*_, **__):
        raise OSError("404 Client Error: Repository Not Found\nfor url ...")

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    with pytest.raises(
        LaurelError, match=r"could not be fetched \(404 Client Error: Repository Not Found\); check the"
    ):
        fetch(Model(path="org/name"), say=print)


def test_a_local_folder_is_itself(tmp_path):
    assert fetch(Model(path=str(tmp_path))) == str(tmp_path)
    with pytest.raises(LaurelError, match=r"model folder '/nowhere/model' does not exist"):
        fetch(Model(path="/nowhere/model"))
    with pytest.raises(LaurelError, match=r"model\.path=None"):
        fetch(Model())


def test_what_is_known_of_a_model_without_a_network(hub, tmp_path):
    assert published_config(Model(path="org/name")) is None
    fetch(Model(path="org/name"), say=print)
    assert published_config(Model(path="org/name")) == {"model_type": "llama"}
    assert published_config(Model(path="/nowhere/model")) is None
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ValueError, match="holds no fields"):
        published_config(Model(path=str(tmp_path)))


def test_the_cache_is_the_clients_own():
    from huggingface_hub import constants

    assert str(room._cache()) == constants.HF_HUB_CACHE
