"""The worker: a paged-KV, continuously batched engine that speaks tokens."""
