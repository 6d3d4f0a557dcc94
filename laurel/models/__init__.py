"""The one door to Hugging Face models: loading, value heads, attention, tokenizers, small models to start with."""
