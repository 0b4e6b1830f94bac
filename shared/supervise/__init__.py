"""Child processes: started, watched, started again, drained, never left behind."""
