"""Effects of data.*: on prompts, on their order, on batches."""

import pytest
from unit.effects.cases import ROWS, run_of, write_rows
from unit.effects.registry import effect

from laurel.config.check import check
from laurel.data.table import DataError
from laurel.models.tokenizer import load_tokenizer
from laurel.trainer.build import prepare


def questions(prompts):
    return [prompt.messages[0]["content"] for prompt in prompts]


def text(config, prompt):
    return load_tokenizer(config.actor_rollout_ref.model).decode(prompt.input_ids)


@effect("data.train_files", "data.val_files")
def test_files_decide_the_prompts(key, settings, tmp_path):
    write_rows(tmp_path / "mine.jsonl", ["1+2=", "3+4="])
    split = "train_prompts" if key == "data.train_files" else "val_prompts"
    other = "val_prompts" if key == "data.train_files" else "train_prompts"
    one = "data.train_batch_size=1"
    before, after = prepare(settings()), prepare(settings(one, f"{key}={tmp_path}/mine.jsonl"))
    assert questions(getattr(after, split)) == ["1+2=", "3+4="]
    assert questions(getattr(before, split)) != questions(getattr(after, split))
    assert questions(getattr(before, other)) == questions(getattr(after, other))


@effect("data.prompt_key")
def test_prompt_key_is_the_column_that_is_rendered(key, settings):
    chat, plain = settings(), settings("data.prompt_key=question")
    assert text(chat, prepare(chat).train_prompts[3]) == "<bos><|user|>3+3=<|assistant|>"
    assert text(plain, prepare(plain).train_prompts[3]) == "3+3="


@effect("data.reward_fn_key")
def test_reward_fn_key_is_the_column_that_chooses_the_scorer(key, settings):
    scores = {}
    for column in ("data_source", "other_source"):
        prepared = prepare(settings(f"data.reward_fn_key={column}"))
        scores[column] = prepared.reward.score("42", prepared.train_prompts[0], length=1).value
    assert scores == {"data_source": 1.0, "other_source": 0.0}  # GSM8K wants its answer after ####


@effect("data.train_batch_size")
def test_train_batch_size_is_prompts_per_step(key, settings):
    for size, steps in ((2, 5), (5, 2)):
        run, _ = run_of(settings(f"data.train_batch_size={size}"))
        assert (len(run.next_prompts()), run.total_steps) == (size, steps)


@effect("data.gen_batch_size")
def test_gen_batch_size_is_prompts_per_generation_batch_where_groups_are_filtered(key, settings):
    filtered = ("algorithm.filter_groups.enable=True", "actor_rollout_ref.rollout.n=2")
    for given, size in (((), 4), ((f"{key}=7",), 7)):
        run, _ = run_of(settings(*filtered, *given))
        assert (len(run.next_prompts()), run.state.consumed) == (size, size)
    (problem,) = check(settings(f"{key}=7"))
    assert problem.field == key
    assert "must be data.train_batch_size (4)" in problem.cure


@effect("data.max_prompt_length")
def test_max_prompt_length_drops_longer_prompts(key, settings, tmp_path):
    write_rows(tmp_path / "mine.jsonl", ["1+1=", "10+1=", "100+1="])  # 7, 8 and 9 tokens with the template
    given = (f"data.train_files={tmp_path}/mine.jsonl", "data.train_batch_size=1")
    kept = {length: questions(prepare(settings(*given, f"{key}={length}")).train_prompts) for length in (7, 8, 16)}
    assert kept == {7: ["1+1="], 8: ["1+1=", "10+1="], 16: ["1+1=", "10+1=", "100+1="]}


@effect("data.max_response_length")
def test_max_response_length_bounds_what_is_sampled(key, settings):
    for length in (5, 8):
        run, pool = run_of(settings(f"{key}={length}"))
        run.roles.rollouts.collect(run.next_prompts, step=1)
        run.roles.rollouts.answer(run.val_prompts)
        assert {request.sampling.max_tokens for request in pool.requests} == {length}


@effect("data.truncation")
def test_truncation_decides_what_is_left_of_a_long_prompt(key, settings):
    def first(side):
        config = settings("data.filter_overlong_prompts=False", "data.max_prompt_length=5", f"{key}={side}")
        return text(config, prepare(config).train_prompts[3])

    assert first("left") == "3+3=<|assistant|>"
    assert first("right") == "<bos><|user|>3+3"
    assert first("middle") == "<bos><|user|>3=<|assistant|>"
    with pytest.raises(DataError, match=r"set data\.filter_overlong_prompts=True"):
        first("error")


@effect("data.filter_overlong_prompts")
def test_filtering_leaves_long_prompts_out(key, settings, tmp_path):
    write_rows(tmp_path / "mine.jsonl", ["1+1=", "100+100="])
    files = f"data.train_files={tmp_path}/mine.jsonl"
    given = (files, "data.train_batch_size=1", "data.max_prompt_length=7", "data.truncation=left")
    kept, cut = (prepare(settings(*given, f"{key}={value}")).train_prompts for value in (True, False))
    assert (len(kept), kept.dropped, kept.truncated) == (1, 1, 0)
    assert (len(cut), cut.dropped, cut.truncated) == (2, 0, 1)


@effect("data.shuffle")
def test_shuffle_mixes_the_order(key, settings):
    ordered, mixed = (run_of(settings(f"{key}={value}"))[0].next_prompts() for value in (False, True))
    assert [prompt.index for prompt in ordered] == [0, 1, 2, 3]
    assert [prompt.index for prompt in mixed] != [0, 1, 2, 3]


@effect("data.seed")
def test_seed_decides_the_order(key, settings):
    def epoch(seed):
        run, _ = run_of(settings(f"{key}={seed}", f"data.train_batch_size={ROWS}"))
        return [prompt.index for prompt in run.next_prompts()]

    assert epoch(1) == epoch(1) != epoch(2)
    assert sorted(epoch(1)) == sorted(epoch(2)) == list(range(ROWS))


@effect("data.train_max_samples", "data.val_max_samples")
def test_max_samples_takes_the_first_rows(key, settings):
    split = "train_prompts" if "train" in key else "val_prompts"
    every, two = (
        getattr(prepare(settings()), split),
        getattr(prepare(settings(f"{key}=2", "data.train_batch_size=2")), split),
    )
    assert questions(two) == questions(every)[:2]
    assert len(every) > 2


@effect("data.apply_chat_template_kwargs")
def test_chat_template_kwargs_reach_the_template(key, settings):
    plain, changed = settings(), settings(f"{key}.add_generation_prompt=False")
    assert text(plain, prepare(plain).train_prompts[3]) == "<bos><|user|>3+3=<|assistant|>"
    assert text(changed, prepare(changed).train_prompts[3]) == "<bos><|user|>3+3="


@effect("data.cache_dir")
def test_cache_dir_holds_tokenized_prompts(key, settings, tmp_path):
    for name in ("one", "two"):
        assert not (tmp_path / name).exists()
        prepare(settings(f"{key}={tmp_path}/{name}"))
        assert len(list((tmp_path / name).glob("*.parquet"))) == 2  # training and validation file
