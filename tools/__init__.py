"""Checks of `make check` that no off-the-shelf tool does."""
