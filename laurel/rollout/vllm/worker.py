"""What Laurel adds to each of vLLM's workers: its sampler, weights that are loaded a bucket at a time, their checksums.

vLLM mixes the class into its worker (``worker_extension_cls``), and calls its methods by name on every worker.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from vllm.distributed import get_tensor_model_parallel_world_size

from laurel.rollout.vllm.resident import resident
from laurel.rollout.vllm.sampler import install
from laurel.weights.fingerprint import checksums
from laurel.weights.parcels import Parcel, Receiver

FILE = "LAUREL_WEIGHTS_FILE"
"""Variable with the descriptor of the file that weights come through, on a CPU."""


class LaurelWorker:
    """Methods of a vLLM worker, called through ``collective_rpc``. ``self`` is vLLM's worker."""

    model_runner: Any

    def laurel_prepare(self) -> None:
        """Before the first request."""
        install(self.model_runner)
        file = os.environ.get(FILE)
        self._laurel_receiver = Receiver(None if file is None else int(file))

    def laurel_load(self, parcel: Parcel) -> None:
        """Copy a bucket's tensors into the model, by vLLM's own mapping of names. The sender may go on afterwards."""
        model = self.model_runner.get_model()
        with torch.no_grad():
            model.load_weights(iter(self._laurel_receiver.open(parcel).items()))
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    def laurel_checksums(self) -> dict[str, int]:
        """Of every tensor as it lies here, under the learner's names."""
        self._laurel_receiver.release()
        tensors = resident(self.model_runner.get_model())
        if get_tensor_model_parallel_world_size() == 1:
            return checksums(dict(tensors))  # views: a GPU is waited for once
        found: dict[str, int] = {}
        for name, tensor in tensors:  # gathered: held one at a time
            found |= checksums({name: tensor})
        return found
