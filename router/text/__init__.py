"""Text to tokens and back: tokenizers, chat templates, exact incremental detokenization, stop strings."""
