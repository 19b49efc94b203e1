"""Where bytes come from and go to: local and remote paths, compression, the cache, safe writing.

`files` opens, reads and replaces files wherever they are, `gzip_file` reads damaged ones to the last whole
byte, `remote` turns failures of remote stores into errors of ours.
"""

from ccl_bench.storage.files import (
    CACHE_VARIABLE,
    DAMAGED,
    GZIP_MAGIC,
    MOST_ZEROS,
    cache_directory,
    decode_text,
    kept_text,
    load_text,
    open_file,
    read_head,
    read_whole,
    refuse_holes,
    save_text,
    sha256,
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
    "kept_text",
    "load_text",
    "open_file",
    "read_head",
    "read_whole",
    "refuse_holes",
    "save_text",
    "sha256",
    "text_folder",
    "to_path",
    "unreadable",
    "unwritten",
    "write_atomically",
]
