"""The workers, as this router sees them: one stream to each, their reports, and the pools that they form."""
