"""Tables of requests that are wrong, each with what it must be told. Used against the edges alone, and against whole stacks."""
