"""Clients of a router's gRPC API: `Client` (sync.py) and `AsyncClient` (aio.py), over the same requests and results."""
