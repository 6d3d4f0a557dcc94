"""One bootstrap for every way in: each node of a job runs the same command, and out of it comes a Ray cluster that
trains and ends everywhere when training ends."""
