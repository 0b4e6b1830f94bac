"""Models on the Hugging Face Hub."""

from pathlib import Path

from worker.sources.errors import SourceError

# What a model directory needs; pickles and other frameworks' weights stay where they are.
_WANTED = ("*.json", "*.safetensors", "*.jinja", "*.model", "vocab.txt", "merges.txt")


def download(repository: str) -> Path:
    """The Hub's model in its own cache (which other tools share), fetched where it is missing. Raises SourceError."""
    from huggingface_hub import snapshot_download  # slow to import
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
    )

    try:
        return Path(snapshot_download(repository, allow_patterns=list(_WANTED)))
    except HFValidationError as error:
        raise SourceError(f"{repository!r} is not a model's name on the Hugging Face Hub") from error
    except GatedRepoError as error:
        raise SourceError(f"{repository}: the Hub wants you to accept its terms, and a token (HF_TOKEN)") from error
    except RepositoryNotFoundError as error:
        raise SourceError(f"{repository}: no such directory here, and no such model on the Hugging Face Hub") from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled, OSError) as error:
        raise SourceError(
            f"{repository}: no such directory here, not in the Hub's cache, and the Hub cannot be reached"
        ) from error
