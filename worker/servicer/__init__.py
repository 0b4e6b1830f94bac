"""The worker's edge: router streams, unary calls, health. Everything here runs on the event loop."""
