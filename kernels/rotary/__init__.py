"""Rotary position embedding: its frequencies, its table and its application."""
