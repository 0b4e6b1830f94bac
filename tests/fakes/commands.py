"""`octavo tenant` and its like in the test's own process, on a store of two tenants."""

from collections.abc import Callable

WHOLE = """
tenants:
  - name: acme
    weight: 2.5
    limits: {requests_per_minute: 60}
    models: ["llama-*"]
    labels: {plan: gold}
  - name: other
"""

Octavo = Callable[..., tuple[int, str, str]]  # exit status, stdout, stderr
