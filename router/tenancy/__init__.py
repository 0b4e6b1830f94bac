"""Who a call is for, and what it may use. `caller` and `admission` are what the rest of the router knows of it.

A call's credentials become a Caller (keyring), its request reserves (quotas) before it is dispatched and settles at its end. What is kept
is behind one Protocol (store), of which sqlite/ is the embedded one. No header that a client chooses names a tenant.
"""
