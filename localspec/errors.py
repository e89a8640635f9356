"""What can go wrong, each with the sentence that a user sees.

LocalspecError
├── UsageError            a flag, value or request that makes no sense      (exit 2)
├── ModelNotFound         a name that is no folder, no alias, no cached model
├── ModelRefused          a target that cannot be supported, with the reason
├── CheckpointRefused     a checkpoint file or folder that cannot be imported right
├── DrafterMismatch       a drafter that does not fit the target it is bound to
├── TrainingError         a training run that cannot go on, with the reason
└── ContextOverflow       a prompt that does not fit the context length
"""

from __future__ import annotations


class LocalspecError(Exception):
    """Base of all errors that are the user's to read; `str()` is one sentence."""

    exit_code = 1


class UsageError(LocalspecError):
    """A flag, a value or a combination of them that makes no sense."""

    exit_code = 2


class ModelNotFound(LocalspecError):
    """A model or drafter name that leads to no files."""


class ModelRefused(LocalspecError):
    """A target that localspec cannot run exactly, with the reason."""


class CheckpointRefused(LocalspecError):
    """A checkpoint that cannot be imported: names the file, the tensor or key, and what was expected."""


class DrafterMismatch(LocalspecError):
    """A drafter whose dimensions or vocabulary do not fit the target."""


class ContextOverflow(LocalspecError):
    """A prompt longer than the context length.

    Args:
        prompt_tokens: tokens in the prompt.
        context_length: tokens that fit.
    """

    def __init__(self, prompt_tokens: int, context_length: int) -> None:
        super().__init__(
            f"the prompt has {prompt_tokens} tokens, but the context length is {context_length}; "
            "shorten the prompt"
        )
        self.prompt_tokens = prompt_tokens
        self.context_length = context_length


class TrainingError(LocalspecError):
    """A training run cannot go on; the sentence says why and what is kept."""


def reason(error: BaseException) -> str:
    """What the system says of an error, without its number and path, which the sentence around has."""
    return getattr(error, "strerror", None) or str(error)
