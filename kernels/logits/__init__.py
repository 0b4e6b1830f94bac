"""Logits of the rows that are sampled."""
