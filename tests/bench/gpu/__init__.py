"""The parts of tests/bench/gpu_check.py: what is checked on a GPU, and what is measured there."""
