"""Programs that measure Laurel and its peers: ``python -m benchmarks.decode`` from the repository's root."""
