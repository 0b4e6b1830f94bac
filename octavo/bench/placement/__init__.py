"""`octavo bench placement`: the router's policies side by side over simulated workers, which run the real scheduler and block pool."""
