"""Forward, backward and update of one role on one rank, over one or many ranks; its checkpoints and exports."""
