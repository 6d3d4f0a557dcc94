"""The training loop, and how a configuration becomes the roles it works with."""
