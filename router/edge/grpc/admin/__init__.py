"""octavo.v1.Admin, on a listener of its own."""
