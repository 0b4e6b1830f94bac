"""Types to protobuf and back: `worker` for the internal stream, `inference` for the public API."""
