"""Token ids to the residual stream."""
