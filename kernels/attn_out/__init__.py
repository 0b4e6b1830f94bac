"""From attention's output back to the residual stream."""
