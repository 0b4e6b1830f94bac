"""Sampling state of the slots, and logprobs."""
