"""What router and worker agree on: types, errors, the wire, hashing, configuration. Imports no torch."""
