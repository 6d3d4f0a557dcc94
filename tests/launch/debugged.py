"""A rank with a breakpoint in it, as a user writes one into Laurel's source."""

from laurel.workers.worker import Rank


class PausedRank(Rank):
    def log_probs(self, micro_batches):
        rows = len(micro_batches[0].rows["index"])
        breakpoint()
        assert rows
        return super().log_probs(micro_batches)


# Ray reads the concurrency group off the function
PausedRank.log_probs.__dict__.update(Rank.log_probs.__dict__)
