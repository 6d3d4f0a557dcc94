"""How a trajectory is scored: built-in scorers by data source, or a function of the user's."""
