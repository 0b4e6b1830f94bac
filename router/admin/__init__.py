"""What operators do over the network: tenants, keys, usage, the audit log, workers. Its two edges only translate."""
