"""Storage: local and remote paths, compression, the cache, safe writing.

`files` opens, reads and replaces files, `remote` those behind addresses such as `s3://`. `gzip_file` reads
damaged ones to the last whole byte, `journals` databases that were not closed. `private` makes files that
only their owner can read, `disk` reserves space and writes to the disk what must outlive a loss of power.
"""

from ccl_bench.storage.disk import check_space, reserve, stored_bytes, sync, sync_file_system
from ccl_bench.storage.files import (
    CACHE_VARIABLE,
    DAMAGED,
    GZIP_MAGIC,
    MOST_ZEROS,
    SQLITE_MAGIC,
    cache_directory,
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
from ccl_bench.storage.private import (
    close_to_others,
    is_open_to_others,
    make_private,
    open_private,
    private_folder,
    temporary_folder,
)
from ccl_bench.storage.remote import is_remote, remote_errors, remote_path, stored_version

__all__ = [
    "CACHE_VARIABLE",
    "DAMAGED",
    "GZIP_MAGIC",
    "MOST_ZEROS",
    "SQLITE_MAGIC",
    "cache_directory",
    "check_space",
    "close_to_others",
    "content_sha256",
    "decode_text",
    "is_of_the_kernel",
    "is_open_to_others",
    "is_remote",
    "journals_of",
    "local_copy",
    "make_private",
    "open_file",
    "open_private",
    "open_raw",
    "private_folder",
    "read_head",
    "read_whole",
    "refuse_holes",
    "remote_errors",
    "remote_path",
    "reserve",
    "sha256",
    "stored_bytes",
    "stored_version",
    "sync",
    "sync_file_system",
    "temporary_folder",
    "to_path",
    "unreadable",
    "unwritten",
    "write_atomically",
]
