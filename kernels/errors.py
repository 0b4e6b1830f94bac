"""Why the kernels that were asked for cannot run."""


class NoBackend(Exception):
    """The backend cannot be had here. The message tells whoever asked for it why."""


class NotOffered(NoBackend, ValueError):
    """Nothing here is called so. The message lists what there is."""
