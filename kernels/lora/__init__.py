"""Low-rank adapters of many sequences in one batch."""
