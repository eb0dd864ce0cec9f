"""Rows of .parquet files, a few at a time: text columns only, as bytes."""

from collections.abc import Iterator, Sequence
from typing import Any

from encoderjax.data import storage
from encoderjax.data.trouble import Kind, Notes
from encoderjax.errors import UserError

_ROWS = 64  # decoded at a time
_BUFFER = 2**20  # bytes read at a time, of each column


def row_group_sizes(path: str) -> list[int]:
    """Returns the bytes of each row group; none for a file without a sound end."""
    import pyarrow as pa

    try:
        with _open(path) as file:
            groups = range(file.num_row_groups)
            return [file.metadata.row_group(i).total_byte_size for i in groups]
    except (pa.ArrowException, OSError):
        return []


def read_rows(
    path: str,
    columns: Sequence[str],
    notes: Notes,
    start: int = 0,
    stop: int | None = None,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields numbered rows of some columns, of the row groups from start to stop.

    Of a damaged row group, the rows before the damage.
    """
    import pyarrow as pa

    try:
        file = _open(path)
    except (pa.ArrowException, OSError) as error:
        notes.add(Kind.DAMAGED, reason=_line(error))
        return
    with file:
        _check_columns(path, file.schema_arrow, columns)
        groups = range(start, file.num_row_groups if stop is None else stop)
        first = sum(file.metadata.row_group(i).num_rows for i in range(start))
        for group in groups:
            number = first
            try:
                for batch in file.iter_batches(
                    _ROWS, row_groups=[group], columns=list(columns), use_threads=False
                ):
                    for row in _as_bytes(batch):
                        number += 1
                        yield number, row
            except (pa.ArrowException, OSError) as error:
                notes.add(Kind.DAMAGED, number + 1, _line(error))
            first += file.metadata.row_group(group).num_rows


def _open(path: str) -> Any:
    # Buffered, not ahead: a row group need not fit in memory.
    import pyarrow.parquet

    source = str(storage.local_path(path))
    if storage.is_remote(path):
        source = storage.open_file(path)
    return pyarrow.parquet.ParquetFile(source, buffer_size=_BUFFER, pre_buffer=False)


def _check_columns(path: str, schema: Any, columns: Sequence[str]) -> None:
    for column in columns:
        if column not in schema.names:
            raise UserError(
                f"{path} has no column {column!r}; its columns: "
                f"{', '.join(schema.names)} (choose with --text_key, --language_key)"
            )
        if _binary_type(schema.field(column).type) is None:
            raise UserError(
                f"{path}: column {column!r} is {schema.field(column).type}, not text; "
                "choose another with --text_key or --language_key"
            )


def _binary_type(kind: Any) -> Any:
    """Returns the type of the bytes of a text column, None for other columns."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return pa.large_binary()
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return pa.binary()
    return None


def _as_bytes(batch: Any) -> Iterator[dict[str, Any]]:
    """Yields the rows with text as bytes: Arrow does not look whether it is UTF-8."""
    names = batch.schema.names
    columns = [
        column.cast(_binary_type(column.type)).to_pylist() for column in batch.columns
    ]
    for values in zip(*columns, strict=True):
        yield dict(zip(names, values, strict=True))


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
