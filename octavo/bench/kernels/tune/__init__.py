"""`octavo bench kernels --tune`: other tiles of the GPU's kernels are timed there, and the fastest is kept in the table."""
