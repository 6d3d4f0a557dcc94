import os
from types import SimpleNamespace

import pytest

from laurel.types import LaurelError
from laurel.workers import session
from laurel.workers.raylets import Raylet
from laurel.workers.session import RaySession, adopted_authentication, choose_address, object_store_bytes

MINE = Raylet("10.0.0.1:6379", 1000, {})


@pytest.fixture
def cluster(monkeypatch):
    """Sets which hand-started cluster of this user the machine has."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    found = SimpleNamespace(raylet=None)
    monkeypatch.setattr(session, "running_raylets", lambda: [])
    monkeypatch.setattr(session, "hand_started_cluster", lambda raylets, uid: found.raylet)
    return found


def test_without_any_cluster_one_is_started(cluster):
    assert choose_address(None) is None


def test_a_cluster_started_by_hand_is_found(cluster):
    cluster.raylet = MINE
    assert choose_address(None) == "10.0.0.1:6379"
    assert choose_address("local") is None


def test_ray_address_wins_over_discovery_and_ray_init_over_both(cluster, monkeypatch):
    cluster.raylet = MINE
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.2:6379")
    assert choose_address(None) == "10.0.0.2:6379"
    assert choose_address("10.0.0.3:6379") == "10.0.0.3:6379"


def test_the_jobs_address_is_not_taken_for_the_cluster(cluster, monkeypatch):
    cluster.raylet = MINE
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:8265")
    said = []
    assert choose_address(None, say=said.append) == "10.0.0.1:6379"
    assert said[0].startswith("RAY_ADDRESS=http://127.0.0.1:8265 is the address for jobs")


def test_auto_never_means_another_users_cluster(cluster, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    with pytest.raises(LaurelError, match="RAY_ADDRESS=auto: you run no Ray cluster on this machine"):
        choose_address(None)


def test_the_ray_client_is_refused(cluster):
    with pytest.raises(LaurelError, match=r"ray_kwargs\.ray_init.address=ray://head:10001"):
        choose_address("ray://head:10001")


def test_authentication_is_the_clusters_unless_the_user_chose():
    token = Raylet("a:1", 0, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "/run/token"})
    plain = Raylet("b:1", 0, {})
    hidden = Raylet("c:1", 5, None)
    found = [token, plain, hidden]
    assert adopted_authentication("a:1", found, {}) == token.auth
    assert adopted_authentication("b:1", found, {}) == {"RAY_AUTH_MODE": "disabled"}
    assert adopted_authentication("c:1", found, {}) == {}
    assert adopted_authentication("a:1", found, {"RAY_AUTH_MODE": "disabled"}) == {}
    assert adopted_authentication("a:1", found, {"RAY_AUTH_TOKEN_PATH": "/my"}) == {"RAY_AUTH_MODE": "token"}


@pytest.fixture
def fake_ray(cluster, monkeypatch):
    """Ray as its calls: what init was given and saw in the environment."""
    calls = []
    state = SimpleNamespace(on=False)

    def init(**arguments):
        calls.append((arguments, {name: os.environ.get(name) for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH")}))
        state.on = True

    def shutdown():
        calls.append("shutdown")
        state.on = False

    monkeypatch.setattr(session.ray, "init", init)
    monkeypatch.setattr(session.ray, "shutdown", shutdown)
    monkeypatch.setattr(session.ray, "is_initialized", lambda: state.on)
    monkeypatch.setattr(session.ray, "get_runtime_context", lambda: SimpleNamespace(gcs_address="1.2.3.4:5"))
    monkeypatch.setattr(session, "refresh_authentication", lambda: None)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    return SimpleNamespace(calls=calls, state=state)


def test_a_ray_of_our_own_asks_for_a_token_that_ends_with_it(fake_ray):
    with RaySession({"num_cpus": 3}, say=lambda line: None) as opened:
        arguments, seen = fake_ray.calls[0]
        assert opened.started
        assert (arguments["address"], arguments["num_cpus"], arguments["include_dashboard"]) == ("local", 3, False)
        assert seen["RAY_AUTH_MODE"] == "token"
        assert os.stat(seen["RAY_AUTH_TOKEN_PATH"]).st_mode & 0o777 == 0o600
        assert os.path.getsize(seen["RAY_AUTH_TOKEN_PATH"]) == 64
        folder = os.path.dirname(seen["RAY_AUTH_TOKEN_PATH"])
        assert os.stat(folder).st_mode & 0o777 == 0o700
        assert os.path.dirname(arguments["_temp_dir"]) == folder, "Ray makes its own folder writable by everybody"
    assert fake_ray.calls[1:] == ["shutdown"]
    assert not os.path.exists(folder)
    assert "RAY_AUTH_MODE" not in os.environ
    assert "RAY_AUTH_TOKEN_PATH" not in os.environ


def test_logs_stay_after_an_error_and_the_token_goes(fake_ray, tmp_path, monkeypatch):
    monkeypatch.setattr(session, "short_temp_dir", lambda: tmp_path)
    (tmp_path / "raylet.err").write_text("why")
    with pytest.raises(ZeroDivisionError), RaySession(say=lambda line: None):
        raise ZeroDivisionError
    assert [path.name for path in tmp_path.iterdir()] == ["raylet.err"]


def test_a_mode_that_the_user_set_stands(fake_ray, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    RaySession(say=lambda line: None).close()
    assert fake_ray.calls[0][1]["RAY_AUTH_MODE"] == "disabled"
    assert os.environ["RAY_AUTH_MODE"] == "disabled"


def test_a_connection_that_was_there_is_used_and_left(fake_ray):
    fake_ray.state.on = True
    with RaySession(say=lambda line: None) as opened:
        assert not opened.started
    assert fake_ray.calls == []
    assert fake_ray.state.on


def test_a_cluster_that_does_not_answer_is_named_with_a_cure(fake_ray, monkeypatch):
    def refuse(**arguments):
        raise ConnectionError("no answer")

    monkeypatch.setattr(session.ray, "init", refuse)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.2:6379")
    with pytest.raises(
        LaurelError, match=r"cannot join Ray at 10.0.0.2:6379: no answer. Check that .*unset RAY_ADDRESS"
    ):
        RaySession(say=lambda line: None)


def test_the_object_store_fits_into_shared_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sysconf", {"SC_PHYS_PAGES": 1 << 20, "SC_PAGE_SIZE": 4096}.__getitem__)  # 4 GiB
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1 << 40))
    assert object_store_bytes(tmp_path) == (4 << 30) // 10
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=200 << 20))
    assert object_store_bytes(tmp_path) == int((200 << 20) * 0.9)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1 << 20))
    assert object_store_bytes(tmp_path) == 80 << 20
