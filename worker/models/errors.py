"""Why a model cannot be served, told to whoever starts the worker."""


class ModelError(Exception):
    """The checkpoint is of a kind that is not served, or it is not whole. The message is one line and names what is at
    fault.
    """
