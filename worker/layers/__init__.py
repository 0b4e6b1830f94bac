"""From a checkpoint's tensors to what the ops take."""
