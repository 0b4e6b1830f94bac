"""The HTTP edge: OpenAI's API over the gate, and the server's own endpoints."""
