"""Adapters: from PEFT's files over host memory to device slots, by name and by version, beside the steps."""
