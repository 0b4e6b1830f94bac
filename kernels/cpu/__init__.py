"""The compiled CPU backend: building and loading it, and its ops."""
