"""Who a call is for. Today every call is the open tenant's; keys, quotas and admission have their room here."""

from router.tenancy.resolve import resolve

__all__ = ["resolve"]
