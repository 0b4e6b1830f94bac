"""What each step computes: one rule for prompts, pieces of them, replays and decodes, under one token budget. Imports no torch."""
