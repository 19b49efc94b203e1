"""Storage: local and remote paths, compression, the cache, safe writing.

`files` opens, reads and replaces files, `remote` those behind addresses such as `s3://`. `gzip_file` reads
damaged ones to the last whole byte, `journals` databases that were not closed. `text_cache` keeps texts.
"""

from ccl_bench.storage.files import (
    DAMAGED,
    GZIP_MAGIC,
    MOST_ZEROS,
    SQLITE_MAGIC,
    decode_text,
    is_of_the_kernel,
    local_copy,
    open_file,
    open_raw,
    read_head,
    read_whole,
    refuse_holes,
    sha256,
    to_path,
    unreadable,
    unwritten,
    write_atomically,
)
from ccl_bench.storage.journals import content_sha256, journals_of
from ccl_bench.storage.remote import is_remote, remote_errors, remote_path, stored_version
from ccl_bench.storage.text_cache import (
    CACHE_VARIABLE,
    cache_directory,
    kept_text,
    load_text,
    save_text,
    text_folder,
)

__all__ = [
    "CACHE_VARIABLE",
    "DAMAGED",
    "GZIP_MAGIC",
    "MOST_ZEROS",
    "SQLITE_MAGIC",
    "cache_directory",
    "content_sha256",
    "decode_text",
    "is_of_the_kernel",
    "is_remote",
    "journals_of",
    "kept_text",
    "load_text",
    "local_copy",
    "open_file",
    "open_raw",
    "read_head",
    "read_whole",
    "refuse_holes",
    "remote_errors",
    "remote_path",
    "save_text",
    "sha256",
    "stored_version",
    "text_folder",
    "to_path",
    "unreadable",
    "unwritten",
    "write_atomically",
]
