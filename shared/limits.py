"""Bounds of a request's sampling options. Routers check them for callers, workers because they trust no router."""

MAX_CHOICES = 64
MAX_LOGPROBS = 20  # alternatives a token
MAX_PENALTY = 2.0  # of presence and frequency, either way
MAX_REPETITION = 10.0
MIN_REPETITION = 1e-6  # workers compute in float32, in which a smaller number could be 0
MAX_BIASED = 1_024  # tokens
MAX_BIAS = 100.0  # either way
MAX_ALLOWED = 4_096  # tokens
MAX_BAD_WORDS = 64  # that a caller gives as tokens, and again as text
MAX_BAD_SEQUENCES = 3 * MAX_BAD_WORDS  # that a worker is given: text is spelled in two ways
MAX_BAD_WORD = 32  # tokens
