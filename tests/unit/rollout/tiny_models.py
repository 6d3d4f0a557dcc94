"""Tiny models and requests of the rollout tests."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from laurel.types import Request, SamplingParams

VOCAB = 97
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.15,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
FAMILIES = {
    "llama": (LlamaForCausalLM, LlamaConfig, {}),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {}),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 16}),
}


def tiny(family="llama", seed=0, **changes):
    model, config, own = FAMILIES[family]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = model(config(**{**SHAPE, **own, **changes})).eval()
        for name, parameter in module.named_parameters():
            if name.endswith("bias"):  # zero at first, which would hide a bias that is forgotten
                torch.nn.init.normal_(parameter, std=0.2)
    return module


def prompt(length, seed=0):
    generator = torch.Generator().manual_seed(1000 * length + seed)
    return tuple(torch.randint(3, VOCAB, (length,), generator=generator).tolist())


def request(name, prompt_ids, seed=0, max_tokens=8, **sampling):
    return Request(str(name), tuple(prompt_ids), SamplingParams(max_tokens=max_tokens, **sampling), seed)


def full_log_probs(module, prompt_ids, token_ids, temperature=1.0):
    """(len(token_ids), V) log-probabilities by one plain forward over the whole sequence."""
    with torch.no_grad():
        logits = module(torch.tensor([[*prompt_ids, *token_ids]])).logits[0]
    return torch.log_softmax(logits[len(prompt_ids) - 1 : -1].double() / temperature, -1)
