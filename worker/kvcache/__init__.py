"""Which block holds what: reference counts, prefix cache, block tables. Numbers only; the runner holds the KV itself."""
