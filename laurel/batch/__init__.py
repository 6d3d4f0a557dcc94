"""One ragged batch type, and how it is cut into mini-batches, ranks and micro-batches."""
