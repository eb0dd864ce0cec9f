"""What can be made again and is kept: the folder for it, and compiled programs."""

import os
import sys
import tempfile
from pathlib import Path

_WORTH_KEEPING = 0.5  # seconds of compiling


def cache_folder() -> Path:
    """Returns the folder of what can be made or fetched again."""
    default = Path("~/.cache/encoderjax").expanduser()
    return Path(os.environ.get("ENCODERJAX_CACHE", default))


def keep_compiled_programs(folder: Path | None = None) -> None:
    """Lets jax keep what it compiles, so that the next start is a quicker one.

    The programs lie in the cache folder under keys of all that they depend on, the
    version of jax and the features of the CPU among it. JAX_COMPILATION_CACHE_DIR
    names another place; empty, it keeps none.

    Args:
      folder: for them, instead of all that.
    """
    if folder is None and "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    folder = folder or cache_folder() / "compiled"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        print(
            f"warning: compiled programs are not kept: {folder} cannot be written "
            f"({error.strerror}); set ENCODERJAX_CACHE to a folder that can",
            file=sys.stderr,
        )
        return
    import jax

    jax.config.update("jax_compilation_cache_dir", str(folder))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", _WORTH_KEEPING)
