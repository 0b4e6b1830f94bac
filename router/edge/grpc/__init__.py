"""The gRPC edge: octavo.v1.Inference, grpc.health.v1 and reflection."""
