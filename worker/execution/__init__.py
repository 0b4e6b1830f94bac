"""The runner: plans in, tokens out."""
