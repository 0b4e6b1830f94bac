"""Load on a running server, and the figures that come of it."""
