"""The native engine: continuous batching over slots on the Hugging Face module itself."""
