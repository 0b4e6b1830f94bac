"""What the router itself costs: its decisions, its hashing, its memory, and its time per token, with workers that only pretend."""
