"""The `octavo` command, one file for each of its commands."""
