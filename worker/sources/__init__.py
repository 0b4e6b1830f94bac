"""Where models come from: Hugging Face directories, GGUF files, the Hub. An edge: what is below knows only `Checkpoint`."""
