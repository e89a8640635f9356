"""Lossless speculative decoding for local language models, with MLX.

import localspec

model = localspec.load("smollm2-135m", drafter="ngram")
print(model.generate("Why is the sky blue?").text)
"""

from __future__ import annotations

from pkgutil import extend_path
from typing import TYPE_CHECKING, Any

# In the root of a checkout Python finds the folder localspec/ before the installed package, which alone
# knows that models/ and converters/ belong to it.
__path__ = extend_path(__path__, __name__)

from localspec import _blas

if TYPE_CHECKING:
    from localspec.model import Model as Model
    from localspec.model import load as load
    from localspec.stream import Piece as Piece
    from localspec.stream import Result as Result

__all__ = ["Model", "Piece", "Result", "load"]

_blas.preload()


def __getattr__(name: str) -> Any:
    # MLX and transformers take a second to import; `localspec --help` does without them.
    if name in __all__:
        from localspec import model, stream

        return getattr(stream if name in ("Piece", "Result") else model, name)
    raise AttributeError(f"module 'localspec' has no attribute '{name}'")
