"""Models on the Hugging Face Hub, or one that answers like it where HF_ENDPOINT says."""

from pathlib import Path

from worker.sources.errors import SourceError

# What a model directory needs; pickles and other frameworks' weights stay where they are.
_WANTED = ("*.json", "*.safetensors", "*.jinja", "*.model", "vocab.txt", "merges.txt")


def download(repository: str) -> Path:
    """The Hub's model in its own cache (which other tools share), fetched where it is missing.

    Without the Hub, what the cache holds is taken. Raises SourceError, whose message is one line.
    """
    from huggingface_hub import HfApi, constants, snapshot_download  # slow to import
    from huggingface_hub.errors import LocalEntryNotFoundError

    asked: Exception | None = None
    try:
        # A download begins with the same question, but waits for its answer for ever. HF_HUB_ETAG_TIMEOUT, in seconds, bounds others.
        HfApi().model_info(repository, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except Exception as error:  # noqa: BLE001 - the HTTP client's errors are no OSErrors, and differ by version
        asked = error
    try:
        return Path(snapshot_download(repository, allow_patterns=list(_WANTED), local_files_only=asked is not None))
    except LocalEntryNotFoundError as error:
        raise SourceError(_reason(repository, asked or error)) from asked or error
    except Exception as error:
        raise SourceError(_reason(repository, error)) from error


def _reason(repository: str, error: Exception) -> str:
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    if isinstance(error, HFValidationError):
        return f"{repository!r} is not a model's name on the Hugging Face Hub"
    if isinstance(error, GatedRepoError):
        return f"{repository}: the Hub wants you to accept its terms, and a token (HF_TOKEN)"
    if isinstance(error, RepositoryNotFoundError):
        return f"{repository}: no such directory here, and no such model on the Hugging Face Hub"
    said = str(error).strip().partition("\n")[0] or type(error).__name__
    return f"{repository}: no such directory here, not in the Hub's cache, and the Hub cannot be reached: {said}"
