"""Pretrain encoder language models of the BERT line in JAX."""

from typing import TYPE_CHECKING

from encoderjax.errors import UserError
from encoderjax.version import VERSION

if TYPE_CHECKING:
    from encoderjax.interop.loading import load

__all__ = ["UserError", "__version__", "load"]
__version__ = VERSION


def __getattr__(name: str):
    # Loaded when asked for: the data tools import this package and need no jax.
    if name == "load":
        from encoderjax.interop.loading import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
