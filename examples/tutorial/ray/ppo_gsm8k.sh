#!/bin/bash
# To a Ray that runs already, on 2 nodes; RAY_AUTH_* as the cluster has them.
ray job submit --address=http://127.0.0.1:8265 --submission-id=ppo-gsm8k --no-wait \
    --runtime-env=laurel/trainer/runtime_env.yaml \
    -- \
    python3 -m laurel.trainer.main_ppo \
    data.train_files=data/gsm8k/train.parquet \
    data.val_files=data/gsm8k/test.parquet \
    actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct \
    critic.model.path=Qwen/Qwen2.5-0.5B-Instruct \
    trainer.default_local_dir=/shared/checkpoints/ppo-gsm8k \
    trainer.nnodes=2 \
    trainer.n_gpus_per_node=8
