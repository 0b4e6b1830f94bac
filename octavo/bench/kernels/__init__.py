"""Each op of a kernel backend, against its reference and against what the machine allows."""
