"""Whole runs on a model of a few thousand parameters: through the command line, Ray, and files on disk."""
