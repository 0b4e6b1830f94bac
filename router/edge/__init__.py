"""The router's edges: gRPC and HTTP. Both only translate; what they ask stands in router/service.py."""
