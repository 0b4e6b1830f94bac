"""The ops that models call, each with a PyTorch reference and, where it pays, compiled backends."""
