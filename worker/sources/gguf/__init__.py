"""GGUF files: metadata to a configuration, tensors to Hugging Face's names and layouts, vocabulary to tokenizer.json."""
