"""What a decoder layer does between its matrix products: one Triton kernel each on a GPU, plain torch elsewhere."""
