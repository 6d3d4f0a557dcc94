import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from laurel.weights.parcels import Receiver, Sender

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def sender():
    made = Sender(torch.device("cpu"))
    yield made
    made.close()


def bucket(seed, rows=3):
    torch.manual_seed(seed)
    return {
        "a": torch.randn(rows, 5),
        "b": torch.randn(7).bfloat16(),
        "one": torch.tensor(2.5),
        "none": torch.zeros(0, 4),
    }


def same(found, sent):
    assert list(found) == list(sent)
    assert all(torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype for name, tensor in sent.items())


def test_a_bucket_arrives_as_it_was_and_the_next_takes_its_place(sender):
    receiver = Receiver(sender.file)
    first = receiver.open(sender.pack(bucket(0)))
    same(first, bucket(0))
    second = receiver.open(sender.pack(bucket(1)))
    same(second, bucket(1))
    same(first, bucket(1))  # one piece of memory, however many buckets


def test_a_larger_bucket_takes_more_memory_and_release_gives_it_back(sender):
    receiver = Receiver(sender.file)
    receiver.open(sender.pack(bucket(0)))
    small = os.fstat(sender.file).st_size
    same(receiver.open(sender.pack(bucket(2, rows=1 << 18))), bucket(2, rows=1 << 18))
    assert os.fstat(sender.file).st_size > small
    receiver.release()
    sender.release()
    assert os.fstat(sender.file).st_size == 0
    same(receiver.open(sender.pack(bucket(3))), bucket(3))


def test_another_process_sees_it_through_the_file_that_it_inherits(sender):
    parcel = sender.pack({"a": torch.arange(6.0).view(2, 3)})
    code = (
        "import pickle, sys\n"
        "from laurel.weights.parcels import Receiver\n"
        "found = Receiver(int(sys.argv[1])).open(pickle.load(sys.stdin.buffer))\n"
        "print(found['a'].tolist())\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(sender.file)],
        input=pickle.dumps(parcel),
        capture_output=True,
        pass_fds=[sender.file],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert ran.stdout.decode().strip() == "[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]", ran.stderr.decode()
    with pytest.raises(ValueError, match="needs the file"):
        Receiver().open(parcel)
