"""Everything that can be known to fail before a process, a model or a GPU is held."""
