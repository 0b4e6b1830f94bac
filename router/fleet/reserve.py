"""The last places that a worker grants are for tenants that have less there than their share.

One tenant that has more to do than all others could have every place in a worker's waiting queue; whoever comes then waits here until one
is free. A place held back costs nothing: that many wait at the worker all the same, and what waits here follows as they go.
"""

ONE_IN = 8  # of the choices that a worker runs, the number of places held back


def held_back(*, places: int, waiting: int, max_running: int) -> bool:
    """Whether a worker that grants `places` more places, with so many requests waiting there or on their way, has none left but those.

    Where few wait, none are held back: a worker that lets few wait would be idle for their sake.
    """
    held = max(1, max_running // ONE_IN)
    return places <= held <= waiting
