import pytest

from laurel.rollout.filter_groups import EveryGroup, InformativeGroups, NothingToLearn, differs, value_of
from laurel.types import Group, LaurelError, Prompt, Score, Trajectory, Turn


def group(row: int, *accs: float, scores=None, shaped=None) -> Group:
    """A group of row ``row`` whose members have these accuracies, raw scores and scores after shaping."""
    prompt = Prompt(row, (1,), (), "d", "1")
    scores = scores or accs
    extras = [{"acc": acc, **({"score": raw} if shaped else {})} for acc, raw in zip(accs, scores, strict=True)]
    values = shaped or scores
    return Group(
        prompt,
        tuple(
            Trajectory(i, (Turn((7,), True),), "stop", 0, score=Score(value, extra))
            for i, (value, extra) in enumerate(zip(values, extras, strict=True))
        ),
    )


class Data:
    """Draws ``size`` rows at a time, round and round; the members of a row's group have the accuracies of ``table``."""

    def __init__(self, table: dict[int, tuple[float, ...]], size: int):
        self.table, self.size, self.drawn = table, size, 0

    def draw(self) -> list[Prompt]:
        rows = [(self.drawn + i) % len(self.table) for i in range(self.size)]
        self.drawn += self.size
        return [Prompt(row, (1,), (), "d", "1") for row in rows]

    def sample(self, prompts) -> list[Group]:
        return [group(prompt.index, *self.table[prompt.index]) for prompt in prompts]


MIXED, RIGHT, WRONG = (0.0, 1.0), (1.0, 1.0), (0.0, 0.0)


def informative(want: int, *, most: int = 0, say=lambda line: None) -> InformativeGroups:
    return InformativeGroups(want=want, metric="acc", most=most, rows=6, say=say)


def gather(select, data: Data, step=7):
    return select.gather(data.draw, data.sample, step=step)


def test_every_group_of_one_batch_is_taken_as_it_is():
    data = Data({0: RIGHT, 1: MIXED, 2: WRONG}, 3)
    gathered = gather(EveryGroup(), data)
    assert [one.prompt.index for one in gathered.groups] == [0, 1, 2]
    assert (gathered.metrics, data.drawn) == ({}, 3)


def test_further_prompts_are_drawn_in_order_until_enough_groups_differ():
    data = Data({0: RIGHT, 1: MIXED, 2: WRONG, 3: MIXED, 4: WRONG, 5: MIXED}, 2)
    lines = []
    gathered = gather(informative(2, say=lines.append), data)
    assert [one.prompt.index for one in gathered.groups] == [1, 3]
    assert data.drawn == 4, "what was drawn, and no more, counts as consumed"
    assert gathered.metrics == {
        "train/num_gen_batches": 2.0,
        "filter_groups/informative": 2.0,
        "filter_groups/dropped": 2.0,
        "filter_groups/surplus": 0.0,
        "filter_groups/score/mean": (2 + 1 + 0 + 1) / 8,
        "filter_groups/dropped_metric/mean": 0.5,
    }
    assert lines == [
        "step 7: 1 of 2 groups are informative after 1 generation batch (2 prompts); drawing further prompts"
    ]


def test_the_first_informative_groups_count_and_the_surplus_is_left_out():
    gathered = gather(informative(2), Data({0: MIXED, 1: RIGHT, 2: MIXED, 3: MIXED, 4: MIXED}, 5))
    assert [one.prompt.index for one in gathered.groups] == [0, 2]
    assert gathered.metrics["filter_groups/surplus"] == 2
    assert gathered.metrics["train/num_gen_batches"] == 1


def test_a_batch_without_dropped_groups_has_no_mean_of_them():
    assert "filter_groups/dropped_metric/mean" not in gather(informative(2), Data({0: MIXED, 1: MIXED}, 2)).metrics


def test_the_cap_ends_the_step_with_what_came_and_what_to_do():
    data = Data({0: RIGHT, 1: MIXED, 2: WRONG, 3: WRONG, 4: WRONG, 5: WRONG}, 3)
    with pytest.raises(NothingToLearn) as error:
        gather(informative(2, most=2), data)
    assert data.drawn == 6
    text = str(error.value)
    assert text.startswith(
        "algorithm.filter_groups.max_num_gen_batches=2: at step 7 only 1 of 2 groups are informative after "
        "2 generation batches (6 prompts). In each of the others all samples have the same acc, 0.2 on average."
    )
    for cure in ("actor_rollout_ref.rollout.n", "max_num_gen_batches", "data.gen_batch_size"):
        assert cure in text


def test_the_cap_is_no_end_for_a_step_that_it_just_fills():
    data = Data({0: RIGHT, 1: MIXED, 2: WRONG, 3: MIXED}, 2)
    assert len(gather(informative(2, most=2), data).groups) == 2


def test_without_a_cap_a_pass_over_the_data_that_teaches_nothing_ends_it():
    data = Data({row: RIGHT if row < 4 else WRONG for row in range(6)}, 4)
    with pytest.raises(NothingToLearn, match=r"the last 8 prompts, a whole pass over the training data, gave no") as e:
        gather(informative(3), data)
    assert "only 0 of 3 groups are informative after 2 generation batches (8 prompts)" in str(e.value)
    assert "allow more" not in str(e.value)


def test_without_a_cap_one_informative_group_per_pass_goes_on():
    data = Data({0: MIXED, **dict.fromkeys(range(1, 6), RIGHT)}, 2)
    assert [one.prompt.index for one in gather(informative(3), data).groups] == [0, 0, 0]
    assert data.drawn == 14  # 0 is drawn first, seventh and thirteenth, in batches of two


@pytest.mark.parametrize(
    ("values", "expected"),
    [((0.1, 0.1, 0.1), False), ((1.0, 1.0), False), ((0.0, 1.0, 0.0), True), ((1.0,), False), ((0.1, 0.3), True)],
)
def test_a_group_differs_if_any_two_members_do(values, expected):
    assert differs(group(0, *values), "acc") is expected


def test_each_metric_looks_at_its_own_number():
    one = group(0, 1.0, 1.0, scores=(0.9, 0.8), shaped=(0.9, 0.9))
    assert [differs(one, metric) for metric in ("acc", "score", "seq_reward", "seq_final_reward")] == [
        False,
        True,
        False,
        False,
    ]
    first = one.trajectories[1]
    found = [value_of(first, one.prompt, metric) for metric in ("acc", "score", "seq_reward", "seq_final_reward")]
    assert found == [1.0, 0.8, 0.9, 0.9]


def test_score_is_the_score_itself_where_nothing_shaped_it():
    one = group(0, 1.0, 1.0, scores=(0.9, 0.8))
    assert value_of(one.trajectories[0], one.prompt, "score") == 0.9


def test_a_reward_function_without_acc_is_told_how_to_report_it():
    one = group(5, 1.0)
    bare = Trajectory(0, (), "stop", 0, score=Score(1.0))
    with pytest.raises(LaurelError, match=r"metric=acc: the reward function reports no acc for row 5 .*metric=score"):
        value_of(bare, one.prompt, "acc")


@pytest.mark.parametrize(("step", "said"), [(1, False), (2, True)])
def test_a_checkpoint_is_spoken_of_only_if_something_was_learned(step, said):
    data = Data({0: RIGHT, 1: MIXED, 2: WRONG, 3: WRONG, 4: WRONG, 5: WRONG}, 3)
    with pytest.raises(NothingToLearn) as error:
        gather(informative(2, most=2), data, step=step)
    assert ("a checkpoint holds it" in str(error.value)) is said
