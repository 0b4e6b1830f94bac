"""A stack on this machine: workers, and the router before them, as supervised children."""
