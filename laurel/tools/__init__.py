"""What a model may use while it answers, and what runs the code that it writes."""
