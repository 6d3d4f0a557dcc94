"""The typed configuration tree, how it is loaded from a command line, and what is checked about it."""
