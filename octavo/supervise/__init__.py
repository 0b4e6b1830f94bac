"""Workers and a router as child processes: started, watched, restarted, drained, never left behind."""
