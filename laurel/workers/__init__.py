"""The only Ray actors of Laurel: one process per rank, and the typed clients that the trainer calls them by."""
