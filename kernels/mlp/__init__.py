"""The gated feed-forward block with its norm and residual."""
