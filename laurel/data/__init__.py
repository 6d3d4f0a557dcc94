"""Data files to prompts: reading, tokenizing once, the order of rows, and the checks of all that."""
