"""The front door: the `octavo` command, the Python client, batch and bench."""
