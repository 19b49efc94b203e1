"""Storage: local and remote paths, compression, the cache, safe writing.

`files` opens, reads and replaces files, on disk and behind addresses such as `s3://`. `gzip_file` reads
damaged ones to the last whole byte.
"""

from ccl_bench.storage.files import (
    CACHE_VARIABLE,
    DAMAGED,
    GZIP_MAGIC,
    MOST_ZEROS,
    cache_directory,
    decode_text,
    is_remote,
    kept_text,
    load_text,
    local_copy,
    open_file,
    read_head,
    read_whole,
    refuse_holes,
    remote_errors,
    remote_path,
    save_text,
    sha256,
    stored_version,
    text_folder,
    to_path,
    unreadable,
    unwritten,
    write_atomically,
)

__all__ = [
    "CACHE_VARIABLE",
    "DAMAGED",
    "GZIP_MAGIC",
    "MOST_ZEROS",
    "cache_directory",
    "decode_text",
    "is_remote",
    "kept_text",
    "load_text",
    "local_copy",
    "open_file",
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
