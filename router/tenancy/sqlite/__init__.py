"""The store of one host: one SQLite database, shared by all of its router processes."""
