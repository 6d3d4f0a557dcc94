"""The mathematics of reinforcement learning: pure functions of keyword tensors, and the table that names them."""
