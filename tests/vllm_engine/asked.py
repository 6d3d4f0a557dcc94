"""Requests, and what a full forward says of their answers."""

import torch

from laurel.types import Request, SamplingParams


def prompt(length, seed=0):
    generator = torch.Generator().manual_seed(100 * length + seed)
    return tuple(torch.randint(4, 100, (length,), generator=generator).tolist())


def request(name, ids, *, seed=0, max_tokens=8, **sampling):
    return Request(str(name), tuple(ids), SamplingParams(max_tokens=max_tokens, **sampling), seed)


def answers(engine, requests):
    return [future.result(60) for future in engine.submit_all(requests)]


def full_log_probs(module, ids, tokens, temperature=1.0):
    """log_softmax(logits / temperature) of a full forward at each of ``tokens``, (len(tokens),)."""
    with torch.no_grad():
        logits = module(torch.tensor([[*ids, *tokens]])).logits[0, len(ids) - 1 : -1]
    chosen = torch.tensor(tokens)[:, None]
    return torch.log_softmax(logits / temperature, -1).gather(1, chosen)[:, 0]
