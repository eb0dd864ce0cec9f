"""Arrays that grow on the disk, a block at a time: .npy, and several of them in .npz.

Under its name a file appears when it is whole.
"""

import contextlib
import os
import shutil
import struct
import tempfile
import uuid
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from encoderjax.errors import UserError

_HEADER = 128  # bytes, enough for any shape that is filled in at the end


class GrowingArray:
    """An .npy whose first axis grows.

    Attributes:
      path: of the file.
      dtype: of the array.
      rows: that were added.
    """

    def __init__(self, path: Path, dtype: np.dtype, shape: tuple[int, ...] = ()):
        self.path = path
        self.rows = 0
        self.dtype, self._shape = np.dtype(dtype), shape
        path.write_bytes(self._header())

    def add(self, block: np.ndarray) -> None:
        """Adds the rows of a block."""
        assert block.shape[1:] == self._shape, (block.shape, self._shape)
        with open(self.path, "ab") as file:
            file.write(np.ascontiguousarray(block, self.dtype).tobytes())
        self.rows += len(block)

    def finish(self) -> None:
        """Says in the file how many rows it has."""
        with open(self.path, "r+b") as file:
            file.write(self._header())
            file.flush()
            os.fsync(file.fileno())

    def read(self) -> np.ndarray:
        """Returns what was added, mapped."""
        self.finish()
        if self.rows == 0:  # nothing cannot be mapped
            return np.zeros((0, *self._shape), self.dtype)
        return np.load(self.path, mmap_mode="r")

    def _header(self) -> bytes:
        about = {
            "descr": np.lib.format.dtype_to_descr(self.dtype),
            "fortran_order": False,
            "shape": (self.rows, *self._shape),
        }
        start = np.lib.format.magic(1, 0)
        size = _HEADER - len(start) - 2
        text = repr(about).ljust(size - 1) + "\n"
        return start + struct.pack("<H", size) + text.encode("latin1")


@contextlib.contextmanager
def scratch_folder(out: Path | None) -> Iterator[Path]:
    """Yields a folder for what is on its way to `out`, beside it, and removes it.

    Without `out` it is one for temporary files.
    """
    unique = f"{uuid.uuid4().hex[:8]}.partial"
    folder = Path(tempfile.gettempdir()) / f"encoderjax.{unique}"
    if out is not None:
        folder = out.with_name(f".{out.name}.{unique}")
    try:
        folder.mkdir(parents=True)
        yield folder
    except OSError as error:
        raise UserError(
            f"out={str(out or folder)!r} cannot be written: {error.strerror or error}; "
            "mend that, or give another --out"
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_npz(path: Path, members: Mapping[str, Path]) -> None:
    """Joins .npy files to one .npz, without holding any of them."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, file in members.items():
            archive.write(file, f"{name}.npy")
