"""What can be made again and is kept: the folder for it, and compiled programs."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

_WORTH_KEEPING = 0.5  # seconds of compiling


def cache_folder() -> Path:
    """Returns the folder of what can be made or fetched again."""
    default = Path("~/.cache/encoderjax").expanduser()
    return Path(os.environ.get("ENCODERJAX_CACHE", default))


def keep_compiled_programs() -> None:
    """Lets jax keep what it compiles, so that the next start is a quicker one.

    The programs lie in the cache folder under keys of all that they depend on, the
    version of jax and the features of the CPU among it. JAX_COMPILATION_CACHE_DIR
    names another place; empty, it keeps none.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    folder = cache_folder() / "compiled"
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


@contextlib.contextmanager
def compiled_anew() -> Iterator[None]:
    """Has jax compile what it would find among what it kept: for what is timed."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    name = "jax_enable_compilation_cache"
    before = getattr(jax.config, name)
    jax.config.update(name, False)
    compilation_cache.reset_cache()  # jax asks only once whether to use it
    try:
        yield
    finally:
        jax.config.update(name, before)
        compilation_cache.reset_cache()
