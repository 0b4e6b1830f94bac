"""Several processes of one router on the same ports: started, watched, started again, drained, and seen as one."""
