"""A request's life between the edges and the workers: validation, the fair queue, retries, delivery."""

from router.dispatch.service import RouterService

__all__ = ["RouterService"]
