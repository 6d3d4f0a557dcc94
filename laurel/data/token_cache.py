"""Token ids of a whole data file kept on disk, so that a second run of the same file and tokenizer starts at once.

The key is made of contents, not of names or times: the bytes of the file, the column, the number of rows, and the
caller's key of tokenizer, chat template and its arguments. The policy for over-long prompts is applied after the cache.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

FORMAT = "1"  # part of every key; raise it when what is stored changes


def default_folder() -> Path:
    return Path.home() / ".cache" / "laurel" / "prompts"


def file_key(file: Path, *, column: str, rows: int, cache_key: str) -> str:
    """The name under which the token ids of a file's first ``rows`` rows are kept."""
    with file.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    return hashlib.sha256("\n".join([FORMAT, digest, column, str(rows), cache_key]).encode()).hexdigest()


def read(folder: Path, key: str, *, rows: int) -> tuple[list[list[int]] | None, str]:
    """The stored ids, one list per row, or None; and a line that says what was wrong with a stored file ("" if
    nothing).
    """
    import pyarrow
    import pyarrow.parquet

    path = folder / f"{key}.parquet"
    if not path.exists():
        return None, ""
    try:
        table = pyarrow.parquet.read_table(path, page_checksum_verification=True)
        ids = table.column("input_ids").to_pylist()
    except (pyarrow.ArrowException, OSError, KeyError) as error:
        return None, f"the cache file {path} is damaged and is made again ({error})"
    if len(ids) != rows or any(row is None for row in ids):
        return None, f"the cache file {path} is damaged and is made again ({len(ids)} rows instead of {rows})"
    return ids, ""


def write(folder: Path, key: str, ids: Sequence[Sequence[int]]) -> str:
    """Store ids so that a reader sees all of them or none; returns a line that says why that failed ("" if it did
    not).
    """
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({"input_ids": pyarrow.array([list(row) for row in ids], type=pyarrow.list_(pyarrow.int32()))})
    temporary = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{key}.", dir=folder)
        os.close(handle)
        pyarrow.parquet.write_table(table, temporary, write_page_checksum=True)
        os.replace(temporary, folder / f"{key}.parquet")
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        return f"tokenized prompts are not kept, {folder} cannot be written ({error}); set data.cache_dir"
    return ""
