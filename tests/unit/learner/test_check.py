from laurel.config.tree import Config
from laurel.learner.check import check


def problems(critic=True, **actor):
    trainer = {"n_gpus_per_node": 4, "nnodes": 2}
    config = {"trainer": trainer, "critic": {"enable": critic, "fsdp_config": {"fsdp_size": 3}}}
    config["actor_rollout_ref"] = {"actor": actor}
    return [(problem.field, problem.value, problem.cure) for problem in check(Config.model_validate(config))]


def test_fsdp_size_must_divide_the_ranks():
    assert problems() == [("critic.fsdp_config.fsdp_size", 3, "does not divide the 8 ranks; use -1, 1, 2, 4, 8")]
    assert problems(critic=False) == []
    ((field, value, _),) = problems(critic=False, fsdp_config={"fsdp_size": 0})
    assert (field, value) == ("actor_rollout_ref.actor.fsdp_config.fsdp_size", 0)
    assert problems(critic=False, fsdp_config={"fsdp_size": 16}) == []


def test_optimizer_settings():
    found = problems(critic=False, optim={"lr_warmup_steps": -2, "betas": (0.9, 1.0)})
    assert [field.rsplit(".", 1)[1] for field, *_ in found] == ["lr_warmup_steps", "betas"]
