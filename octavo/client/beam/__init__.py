"""Beam search as a client of the public API: each round asks Generate for the next token of every beam, over one Session."""
