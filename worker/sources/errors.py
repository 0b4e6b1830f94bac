"""What is wrong with a model's files."""

from shared.errors import OctavoError


class SourceError(OctavoError):
    """A model that cannot be opened. The message names the file, tensor or key, what was expected and what was found."""

    code = "model_unreadable"
