"""How new weights reach an engine, and the proof that they arrived."""
