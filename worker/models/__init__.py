"""Model families as tables, and where their weights come from."""
