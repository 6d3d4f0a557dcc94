"""Every setting of Laurel: typed, frozen, with a default and one sentence that gives its unit.

The dotted paths are the vocabulary that users of verl already type. ``null`` as a default means "derived"; the sentence
says from what, and ``load.py`` replaces it before any room reads it. ``docs/config.md`` is generated from this file.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from laurel.config.correction import RolloutCorrection
from laurel.config.estimators import ESTIMATORS, AdvEstimator
from laurel.config.losses import LOSSES, LossAggMode, PolicyLoss
from laurel.config.section import Count, Fraction, NonNegative, Positive, Section

KlEstimator = Literal["kl", "abs", "mse", "low_var_kl"]
KlLossType = Literal["kl", "abs", "mse", "low_var_kl", "kl+", "abs+", "low_var_kl+"]
EngineName = Literal["native", "vllm", "sglang"]
FilterMetric = Literal["acc", "score", "seq_reward", "seq_final_reward"]
LoggerName = Literal["console", "file", "tensorboard", "wandb", "mlflow"]


class Data(Section):
    train_files: list[str] = []
    """Training prompts: paths of parquet, json or jsonl files."""
    val_files: list[str] = []
    """Validation prompts: paths of parquet, json or jsonl files."""
    prompt_key: str = "prompt"
    """Column that holds the chat messages or the prompt text."""
    reward_fn_key: str = "data_source"
    """Column that names the data source, by which the reward function is chosen."""
    train_batch_size: Positive = 1024
    """Prompts per training step (each sampled rollout.n times)."""
    gen_batch_size: Positive | None = None
    """Prompts per generation batch if algorithm.filter_groups is on; null is train_batch_size."""
    max_prompt_length: Positive = 512
    """Longest prompt, in tokens, after the chat template."""
    max_response_length: Positive = 512
    """Longest response, in tokens."""
    truncation: Literal["error", "left", "right", "middle"] = "error"
    """What happens to an over-long prompt that is not filtered: refuse to start, or cut tokens at that end."""
    filter_overlong_prompts: bool = True
    """Leave out prompts longer than max_prompt_length and report how many."""
    shuffle: bool = True
    """Draw training prompts in a random order that depends on data.seed and the epoch alone."""
    seed: int = 1
    """Seed of the order of training prompts."""
    train_max_samples: int = -1
    """Use at most this many training rows; -1 uses all."""
    val_max_samples: int = -1
    """Use at most this many validation rows; -1 uses all."""
    apply_chat_template_kwargs: dict[str, Any] = {}
    """Further arguments of the chat template, such as enable_thinking."""
    cache_dir: str | None = None
    """Folder of tokenized prompts, keyed by content; null is ~/.cache/laurel/prompts."""


class Model(Section):
    path: str | None = None
    """Hugging Face model: a folder or a hub id. Under critic, null is the actor's."""
    tokenizer_path: str | None = None
    """Tokenizer folder or hub id; null is the model's own."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model."""
    enable_gradient_checkpointing: bool | None = None
    """Recompute activations in the backward pass; null does on a CPU, and on a GPU only if memory needs it."""
    custom_chat_template: str | None = None
    """Jinja chat template used instead of the tokenizer's own."""
    override_config: dict[str, Any] = {}
    """Fields of the model's own config to replace, such as attention_dropout."""


class Optim(Section):
    lr: NonNegative = 1e-6
    """Peak learning rate of AdamW."""
    lr_warmup_steps: int = -1
    """Optimizer updates of linear warm-up; -1 takes lr_warmup_steps_ratio."""
    lr_warmup_steps_ratio: Fraction = 0.0
    """Warm-up as a fraction of all optimizer updates."""
    lr_scheduler_type: Literal["constant", "cosine"] = "constant"
    """Shape of the learning rate after warm-up."""
    min_lr_ratio: Fraction = 0.0
    """Last learning rate of a cosine schedule, as a fraction of lr."""
    weight_decay: NonNegative = 0.01
    """Decoupled weight decay of AdamW."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Moment decay rates of AdamW."""
    clip_grad: Annotated[float, Field(gt=0)] = 1.0
    """Largest global gradient norm; larger gradients are scaled down to it."""


class CriticOptim(Optim):
    lr: NonNegative = 1e-5
    """Peak learning rate of the critic's AdamW."""


class Fsdp(Section):
    param_offload: bool = False
    """Keep parameters in CPU memory between forwards (FSDP2 offload); needs more than one rank."""
    optimizer_offload: bool | None = None
    """Keep moments, and one rank's masters, in CPU memory between updates; null only if the GPU's memory needs it."""
    fsdp_size: int = -1
    """Ranks that share one copy of the parameters; -1 is all ranks. Smaller groups replicate (HSDP)."""
    reshard_after_forward: bool = True
    """Free gathered parameters after each layer's forward, and gather them again in the backward pass."""


class Actor(Section):
    ppo_mini_batch_size: Positive = 256
    """Prompts per optimizer update (times rollout.n trajectories); if not given, at most data.train_batch_size."""
    ppo_micro_batch_size_per_gpu: Positive | None = None
    """Trajectories per forward; null packs by ppo_max_token_len_per_gpu."""
    use_dynamic_bsz: bool | None = None
    """Pack by token budget, whatever micro-batch size is given; null: if none is, or on a GPU if twice as many fit."""
    ppo_max_token_len_per_gpu: Positive | None = None
    """Token budget of one forward and backward; null is what the GPU's memory has room for, 16384 on a CPU."""
    ppo_epochs: Positive = 1
    """Passes over each step's batch."""
    shuffle: bool = False
    """Mix the groups of a batch before cutting it into mini-batches."""
    clip_ratio: NonNegative = 0.2
    """Clip range on both sides: of the ratio, for geo_mean of its logarithm, for dppo_* of the divergence."""
    clip_ratio_low: NonNegative | None = None
    """Clip range below 1; null is clip_ratio."""
    clip_ratio_high: NonNegative | None = None
    """Clip range above 1; null is clip_ratio."""
    clip_ratio_c: Annotated[float, Field(gt=1)] = 3.0
    """Dual clip: lower bound of the objective for negative advantages, as a multiple of the advantage."""
    tau_pos: Annotated[float, Field(gt=0)] = 1.0
    """Temperature of sapo's gate where the advantage is positive; larger fades sooner."""
    tau_neg: Annotated[float, Field(gt=0)] = 1.05
    """Temperature of sapo's gate elsewhere."""
    loss_agg_mode: LossAggMode | None = None
    """How token losses become one number; null is seq-mean-token-mean for gspo, geo_mean and sapo, else token-mean."""
    loss_scale_factor: Annotated[float, Field(gt=0)] | None = None
    """Constant length that divides seq-mean-token-sum-norm, in tokens; null is data.max_response_length."""
    entropy_coeff: float = 0.0
    """Weight of the entropy bonus."""
    use_kl_loss: bool = False
    """Add the KL divergence to the reference policy to the loss."""
    kl_loss_coef: NonNegative = 0.001
    """Weight of the KL loss."""
    kl_loss_type: KlLossType = "low_var_kl"
    """KL estimator of the loss: kl is k1, abs, mse is k2, low_var_kl is k3; with + it has the gradient of k2."""
    policy_loss: PolicyLoss = PolicyLoss()
    optim: Optim = Optim()
    fsdp_config: Fsdp = Fsdp()


class ValKwargs(Section):
    n: Positive = 1
    """Samples per validation prompt."""
    do_sample: bool = False
    """Sample in validation; false is greedy decoding."""
    temperature: NonNegative = 1.0
    """Temperature of sampled validation."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus of sampled validation: the smallest set of tokens with at least this probability."""
    top_k: int = -1
    """Number of likeliest tokens considered in sampled validation; -1 is all."""


class Rollout(Section):
    name: EngineName = "native"
    """Engine that samples responses."""
    n: Positive = 1
    """Trajectories per prompt."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Sampling temperature; log-probabilities are taken at it everywhere."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus: the smallest set of tokens with at least this probability."""
    top_k: int = -1
    """Number of likeliest tokens considered; -1 is all."""
    ignore_eos: bool = False
    """Go on past the end-of-turn token, up to max_response_length (for benchmarks)."""
    tensor_model_parallel_size: Positive = 1
    """GPUs per engine replica; both engines of this version run on one."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Fraction of GPU memory that model and KV cache of the engine may take."""
    max_num_seqs: Positive | None = None
    """Sequences decoded at once per replica; null is derived from memory and the batch."""
    max_num_batched_tokens: Positive = 8192
    """Most prompt tokens prefilled in one forward."""
    max_model_len: Positive | None = None
    """Longest prompt plus response, in tokens; null is the sum of the two data limits."""
    free_cache_engine: bool = True
    """Give the KV cache's memory back while training."""
    log_prob_micro_batch_size_per_gpu: Positive | None = None
    """Trajectories per forward when old log-probabilities are computed; null packs by tokens."""
    log_prob_use_dynamic_bsz: bool | None = None
    """Pack by token budget, whatever micro-batch size is given; null: if none is, or on a GPU if twice as many fit."""
    log_prob_max_token_len_per_gpu: Positive | None = None
    """Token budget of a log-probability forward; null is what the GPU's memory has room for, 16384 on a CPU."""
    val_kwargs: ValKwargs = ValKwargs()
    engine_kwargs: dict[str, dict[str, Any]] = {}
    """Further arguments by engine name, passed on unchanged, such as vllm.enforce_eager."""


class Ref(Section):
    log_prob_micro_batch_size_per_gpu: Positive | None = None
    """Trajectories per reference forward; null packs by tokens."""
    log_prob_use_dynamic_bsz: bool | None = None
    """Pack by token budget, whatever micro-batch size is given; null: if none is, or on a GPU if twice as many fit."""
    log_prob_max_token_len_per_gpu: Positive | None = None
    """Token budget of a reference forward; null is what the GPU's memory has room for, 16384 on a CPU."""
    fsdp_config: Fsdp = Fsdp()


class ActorRolloutRef(Section):
    model: Model = Model()
    actor: Actor = Actor()
    rollout: Rollout = Rollout()
    ref: Ref = Ref()


class Critic(Section):
    enable: bool | None = None
    """Train a value model; null follows the advantage estimator."""
    model: Model = Model()
    optim: CriticOptim = CriticOptim()
    fsdp_config: Fsdp = Fsdp()
    ppo_mini_batch_size: Positive | None = None
    """Prompts per critic update; null is the actor's."""
    ppo_micro_batch_size_per_gpu: Positive | None = None
    """Trajectories per critic forward; null packs by ppo_max_token_len_per_gpu."""
    use_dynamic_bsz: bool | None = None
    """Pack by token budget, whatever micro-batch size is given; null: if none is, or on a GPU if twice as many fit."""
    ppo_max_token_len_per_gpu: Positive | None = None
    """Token budget of a critic forward and backward; null is what the GPU's memory has room for, 32768 on a CPU."""
    ppo_epochs: Positive | None = None
    """Critic passes over each step's batch; null is the actor's."""
    cliprange_value: NonNegative = 0.5
    """Largest change of a value per step that the loss rewards."""
    loss_agg_mode: LossAggMode = "token-mean"
    """How token losses become one number."""


class KlCtrl(Section):
    type: Literal["fixed", "adaptive"] = "fixed"
    """Keep kl_coef, or steer it so that the KL stays near target_kl."""
    kl_coef: NonNegative = 0.001
    """Weight of the KL penalty in the reward (first value if adaptive)."""
    horizon: Positive = 10000
    """Trajectories over which the adaptive controller acts."""
    target_kl: Annotated[float, Field(gt=0)] = 0.1
    """KL per token that the adaptive controller aims at, in nats."""


class FilterGroups(Section):
    enable: bool = False
    """Train only on groups whose samples differ in the metric, and draw further prompts for those left out (DAPO)."""
    metric: FilterMetric = "acc"
    """What must differ: acc of the reward function, its score, or seq_reward (the score after reward shaping)."""
    max_num_gen_batches: Count = 0
    """Most generation batches per step, after which the run ends; 0 ends only when all data give nothing to learn."""


class AlgorithmConfig(Section):
    adv_estimator: AdvEstimator = "gae"
    """Advantage estimator, and with it the algorithm: gae is PPO with a critic, grpo compares samples of one prompt."""
    gamma: Fraction = 1.0
    """Discount per token, of gae and reinforce_plus_plus."""
    lam: Fraction = 1.0
    """GAE's lambda."""
    norm_adv_by_std_in_grpo: bool = True
    """Divide the advantages of grpo, grpo_passk and gdpo by the group's standard deviation (false is Dr.GRPO)."""
    gdpo_reward_keys: list[str] = []
    """Numbers of the reward function's dict that gdpo compares one by one, such as [accuracy,format]."""
    gdpo_reward_weights: list[float] | None = None
    """Weights of gdpo_reward_keys, in their order; null is 1 for each."""
    use_kl_in_reward: bool | None = None
    """Subtract the KL to the reference policy from the reward; null: exactly if kl_ctrl.kl_coef was given."""
    kl_penalty: KlEstimator = "kl"
    """KL estimator of the reward: kl is k1, abs, mse is k2, low_var_kl is k3."""
    kl_ctrl: KlCtrl = KlCtrl()
    rollout_correction: RolloutCorrection = RolloutCorrection()
    filter_groups: FilterGroups = FilterGroups()


class RewardManager(Section):
    name: Literal["naive", "dapo"] = "naive"
    """How trajectories are scored: naive calls the reward function, dapo may also take off an over-long penalty."""


class CustomRewardFunction(Section):
    path: str | None = None
    """Python file with a reward function; null uses the built-in one of each data source."""
    name: str = "compute_score"
    """Name of the function in that file."""


class Reward(Section):
    reward_manager: RewardManager = RewardManager()
    reward_kwargs: dict[str, Any] = {}
    """Further arguments of the reward function; overlong_buffer_cfg and max_resp_len are the manager dapo's."""
    custom_reward_function: CustomRewardFunction = CustomRewardFunction()
    num_workers: Count | None = None
    """Processes that score trajectories; null is one per core, up to 8, and 0 scores in the command's own process."""
    timeout: Annotated[float, Field(gt=0)] = 120.0
    """Longest time that scoring one trajectory may take, in seconds, before it counts as failed."""
    memory_limit_mb: Positive = 8192
    """Most memory of a process that scores, in MiB, before the trajectory that it scores counts as failed."""


class RayKwargs(Section):
    ray_init: dict[str, Any] = {}
    """Arguments of ray.init when Laurel starts or joins Ray, such as num_cpus or address."""


class Trainer(Section):
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where models run; auto is cuda if this machine has an NVIDIA GPU or n_gpus_per_node asks for several."""
    n_gpus_per_node: Positive | None = None
    """Learner ranks per node: GPUs, or processes if device is cpu; null is every GPU of this machine, 1 on a CPU."""
    nnodes: Positive = 1
    """Nodes of the Ray cluster to use."""
    project_name: str = "laurel"
    """Project, for loggers and the checkpoint folder."""
    experiment_name: str = "default"
    """Run, for loggers and the checkpoint folder."""
    logger: list[LoggerName] = ["console", "file"]
    """Where metrics go."""
    seed: int = 1
    """Seed of sampling: with step, prompt and sample it decides every random number of a rollout."""
    total_epochs: Positive = 1
    """Passes over the training data."""
    total_training_steps: Positive | None = None
    """Steps to train; null is what total_epochs gives."""
    critic_warmup: Count = 0
    """First steps in which only the critic is updated."""
    val_before_train: bool = True
    """Validate before the first step."""
    val_only: bool = False
    """Validate and stop."""
    test_freq: int = -1
    """Steps between validations; -1 validates only before and after training."""
    log_val_generations: Count = 0
    """Validation samples shown by each logger that can show text."""
    save_freq: int = -1
    """Steps between checkpoints; -1 saves only at the end."""
    max_walltime: Positive | None = None
    """Seconds after which the run saves and ends, to be gone on with; null is two minutes before Slurm's limit."""
    default_local_dir: str | None = None
    """Checkpoint folder; null is checkpoints/<project_name>/<experiment_name> where the job was started."""
    max_actor_ckpt_to_keep: Positive | None = None
    """Newest checkpoints kept; null keeps all."""
    resume_mode: Literal["auto", "disable", "resume_path"] = "auto"
    """Go on from the newest checkpoint of the folder, start anew, or go on from resume_from_path."""
    resume_from_path: str | None = None
    """Checkpoint folder (global_step_N) to go on from."""
    rollout_data_dir: str | None = None
    """Folder for the training samples of every step as jsonl; null keeps none."""
    validation_data_dir: str | None = None
    """Folder for the samples of every validation as parquet; null is validation/ in the checkpoint folder."""
    placement_timeout: Positive = 600
    """Longest wait for the cluster to offer the nodes and GPUs asked for, in seconds."""


class Config(Section):
    data: Data = Data()
    actor_rollout_ref: ActorRolloutRef = ActorRolloutRef()
    critic: Critic = Critic()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    reward: Reward = Reward()
    ray_kwargs: RayKwargs = RayKwargs()
    trainer: Trainer = Trainer()

    @property
    def needs_critic(self) -> bool:
        """Whether the algorithm learns from values; validation alone needs none."""
        return ESTIMATORS[self.algorithm.adv_estimator].needs_critic and not self.trainer.val_only

    @property
    def prompts_at_once(self) -> int:
        """Prompts sampled together: a step's, or a generation batch's where groups are filtered."""
        filtered = self.algorithm.filter_groups.enable
        return (self.data.gen_batch_size if filtered else None) or self.data.train_batch_size

    @property
    def ratio_is_one(self) -> bool:
        """Whether the only update of a batch takes its own log-probabilities as the old ones: no pass computes them."""
        actor, algorithm = self.actor_rollout_ref.actor, self.algorithm
        once = actor.ppo_epochs == 1 and actor.ppo_mini_batch_size >= self.data.train_batch_size
        wanted = (
            algorithm.use_kl_in_reward,
            algorithm.rollout_correction.bypass_mode,
            algorithm.rollout_correction.corrects,
            LOSSES[actor.policy_loss.loss_mode].needs_old,
        )
        return once and not any(wanted)

    @property
    def needs_reference(self) -> bool:
        """Whether a KL term compares with a frozen reference policy; validation alone has none."""
        in_loss = self.actor_rollout_ref.actor.use_kl_loss
        return (in_loss or bool(self.algorithm.use_kl_in_reward)) and not self.trainer.val_only
