"""The protocol files and the stubs generated from them (`make proto`)."""
