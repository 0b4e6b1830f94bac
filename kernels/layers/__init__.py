"""The stack of decoder layers."""
