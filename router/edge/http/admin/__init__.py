"""/admin/v1, the operators' API over HTTP, on a listener of its own."""
