"""The runner for devices that compute behind the host: a step is staged, sent in one copy, computed in order, and fetched in one copy."""
