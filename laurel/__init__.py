"""Laurel: reinforcement learning for language models, on Ray, from one CPU to many GPU nodes."""

__version__ = "0.1.0"
