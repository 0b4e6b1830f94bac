"""Adapters as the router sees them: what each worker has, and what the names in requests mean."""
