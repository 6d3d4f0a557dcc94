"""The one door to Hugging Face models: loading, value heads, attention functions, tokenizers, and small models to start with."""
