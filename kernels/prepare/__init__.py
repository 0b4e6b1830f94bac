"""What every layer of a step shares."""
