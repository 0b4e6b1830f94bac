"""The router: stateless, speaks text to clients and tokens to workers. Imports no torch."""
