"""What is wrong with a model's files."""


class SourceError(Exception):
    """A model that cannot be opened. The message names the file, tensor or key, what was expected and what was found."""
