"""What the bounds need to know of a model on disk."""

from octavo.bench.bound import ModelSize
from worker import auto
from worker.config import WorkerConfig
from worker.execution.config import Dtype
from worker.layers.weights import torch_dtype
from worker.models.checkpoint import Checkpoint
from worker.sources.open import Source, open_checkpoint


def dtype_of(settings: WorkerConfig) -> Dtype:
    """The dtype in which the engine computes with these settings."""
    source: Source = open_checkpoint(settings.model)
    return auto.dtype(settings.dtype, source.checkpoint.config.get("dtype"))


def size_of(settings: WorkerConfig) -> ModelSize:
    """Counted from the checkpoint's matrices: those of the layers, and the head, which may be the embedding."""
    source: Source = open_checkpoint(settings.model)
    body, head = counted(source.checkpoint)
    return ModelSize(body=body, head=head, itemsize=torch_dtype(dtype_of(settings)).itemsize)


def counted(checkpoint: Checkpoint) -> tuple[int, int]:
    """Weights of the layers' matrices, and of the head. Embedding and head have a row a token of the vocabulary; they may be one."""
    vocabulary = checkpoint.config["vocab_size"]
    shapes = [checkpoint.tensor(name).shape for name in checkpoint.names()]
    shapes = [shape for shape in shapes if len(shape) == 2]
    ends = [shape.numel() for shape in shapes if shape[0] == vocabulary]
    return sum(shape.numel() for shape in shapes if shape[0] != vocabulary), max(ends, default=0)
