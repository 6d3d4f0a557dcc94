"""The command line as assignments."""

import pytest

from laurel.config.overrides import Assignment, read, read_file


def only(word):
    assignments, problems = read([word])
    assert problems == []
    return assignments[0]


@pytest.mark.parametrize("word", ["trainer.nnodes=2", "+trainer.nnodes=2", "++trainer.nnodes=2"])
def test_plus_changes_nothing(word):
    assert only(word) == Assignment("trainer.nnodes", "2", typed=True)


def test_the_first_equals_sign_ends_the_key():
    assert only("data.train_files=/a=b c.parquet").value == "/a=b c.parquet"


@pytest.mark.parametrize("word", ["~trainer.nnodes", "~trainer.nnodes=2"])
def test_tilde_resets(word):
    assert only(word) == Assignment("trainer.nnodes", None, typed=True, reset=True)


@pytest.mark.parametrize(
    ("word", "cure"),
    [
        ("trainer.nnodes", "has no '='"),
        ("--config-path", "--config FILE.yaml"),
        ("--config-name=ppo", "--config FILE.yaml"),
        ("--multirun", "once per value"),
        ("--cfg", "--dry-run"),
        ("--trainer.nnodes=2", "without dashes: trainer.nnodes=2"),
        ("--verbose", "no option"),
        ("~/data/x=1", "is no setting"),
        ("a b=1", "is no setting"),
        ("reward@reward=x", "config groups"),
        ("trainer.nnodes=", "has no value"),
        ("data.train_files=${oc.env:HOME}/x", "$NAME"),
    ],
)
def test_words_that_are_no_settings(word, cure):
    assignments, problems = read([word])
    assert assignments == []
    assert len(problems) == 1
    assert cure in problems[0].cure


def test_empty_words_of_scripts_are_nothing():
    assert read(["", "  "]) == ([], [])


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "my.yaml"
    path.write_text(
        "trainer:\n  nnodes: 2\n  logger: [console]\nactor_rollout_ref.actor:\n  optim.lr: 1e-6\n"
        "reward:\n  reward_kwargs: {a: {b: 1}}\n"
    )
    return str(path)


def test_files_nest_and_dot(file):
    assert [(item.key, item.value) for item in read_file(file)] == [
        ("trainer.nnodes", 2),
        ("trainer.logger", ["console"]),
        ("actor_rollout_ref.actor.optim.lr", 1e-6),
        ("reward.reward_kwargs", {"a": {"b": 1}}),
    ]


@pytest.mark.parametrize("form", ["apart", "joined"])
def test_files_come_under_the_command_line_wherever_they_stand(file, form):
    option = ["--config", file] if form == "apart" else [f"--config={file}"]
    assignments, problems = read(["trainer.nnodes=3", *option])
    assert problems == []
    assert [item.value for item in assignments if item.key == "trainer.nnodes"] == [2, "3"]


@pytest.mark.parametrize(
    ("content", "cure"), [(None, "does not exist"), ("- a\n", "must hold groups"), ("a: [", "expected")]
)
def test_files_that_cannot_be_used(tmp_path, content, cure):
    path = tmp_path / "bad.yaml"
    if content is not None:
        path.write_text(content)
    assignments, problems = read(["--config", str(path)])
    assert assignments == []
    assert problems[0].field == "--config"
    assert cure in problems[0].cure


def test_config_without_a_name():
    assert "name of a YAML file" in read(["--config"])[1][0].cure
