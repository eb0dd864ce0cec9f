import atexit
import os
import shutil
import tempfile

# Before anything imports jax: eight devices, all of them the CPU. Programs that several
# tests compile, also in processes of their own, are compiled once.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="encoderjax-tests-")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.5"

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 8)
atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], True)


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory):
    """Keeps the demo corpus of the tests apart from the user's."""
    folder = tmp_path_factory.mktemp("cache")
    os.environ["ENCODERJAX_CACHE"] = str(folder)
    return folder


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """A small corpus of invented prose: 40 documents, 400 pieces."""
    from tests.small_corpus import prepare_small_corpus

    return prepare_small_corpus(tmp_path_factory.mktemp("corpus"))
