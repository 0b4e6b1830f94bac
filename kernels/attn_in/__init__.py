"""From the residual stream to queries, with keys and values written to the cache."""
