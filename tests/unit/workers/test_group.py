from laurel.workers.environment import passed_environment
from laurel.workers.group import describe_nodes
from laurel.workers.waiting import Member


def test_a_line_for_each_node():
    members = [
        Member(0, "10.0.0.1", "a", "m", 1, "cuda", 4),
        Member(1, "10.0.0.1", "a", "m", 2, "cuda", 4),
        Member(2, "10.0.0.2", "b", "n", 3, "cuda", 1),
    ]
    assert describe_nodes(members) == [
        "node 10.0.0.1: ranks 0-1 on cuda, 4 threads each",
        "node 10.0.0.2: rank 2 on cuda, 1 thread",
    ]


def test_ranks_get_what_decides_where_models_lie_and_nothing_secret_of_loggers(monkeypatch):
    monkeypatch.setenv("HF_HOME", "/models")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    passed = passed_environment()
    assert (passed["HF_HOME"], passed["NCCL_DEBUG"]) == ("/models", "INFO")
    assert "WANDB_API_KEY" not in passed
