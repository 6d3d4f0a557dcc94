"""Making trajectories: the engine protocol, the native engine, the pool of replicas, and collecting groups."""
