"""What the Triton kernels share: which GPU, which tile, how a launch is made, and the backend built of them."""
