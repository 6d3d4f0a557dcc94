"""vLLM behind the engine protocol: a process of its own per replica, which takes weights from the learner's."""
