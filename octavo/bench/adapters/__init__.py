"""What adapters cost: the engine alone, with many of them and with none, in turns."""
