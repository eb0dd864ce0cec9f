import atexit
import os
import shutil
import tempfile

# Before anything imports jax: eight devices, all of them the CPU. Programs that several
# tests compile, also in processes of their own, are compiled once: the workers share
# the cache of the process that starts them.
IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ
os.environ["JAX_PLATFORMS"] = "cpu"
if not IS_WORKER:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="encoderjax-")
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.5"
# Programs here run for milliseconds: LLVM's optimisations cost more than they save, and
# so does cutting a program in parts for several threads, where two workers compile.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1",
)

import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_num_cpu_devices", 8)
if not IS_WORKER:
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], True)


def pytest_collection_modifyitems(items):
    """Puts the longest files first, so that no worker is left alone with one."""
    longest = ("test_train.py", "test_recipes.py", "test_step.py", "test_mixtures.py")
    items.sort(key=lambda item: item.path.name not in longest)


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


@pytest.fixture(scope="session")
def group(tmp_path_factory):
    """A folder with three corpora of very different sizes, and one tokenizer."""
    from tests.small_corpus import prepare_group

    sizes = {"de": 60, "en": 20, "sw": 8}
    return prepare_group(tmp_path_factory.mktemp("group"), sizes)
