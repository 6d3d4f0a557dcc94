"""From one command to many nodes: the cluster of a job, and the schedulers that give it its nodes."""
