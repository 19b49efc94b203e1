"""A bucket that holds the example run, on an S3 server of this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from commands import EXAMPLE
from object_storage import bucket_of, s3_server, settings_for

if TYPE_CHECKING:
    from collections.abc import Iterator

BUCKET = "runs"


@pytest.fixture(scope="session")
def endpoint() -> Iterator[str]:
    """Return the address of a server that speaks S3 and holds one bucket."""
    with s3_server() as address:
        with bucket_of(address, BUCKET) as client:
            for path in EXAMPLE.iterdir():
                client.upload_file(str(path), BUCKET, f"teams/one/{path.name}")
            hidden = {"Key": "teams/one/.hidden/trace.json", "Body": b'{"traceEvents": []}'}
            client.put_object(Bucket=BUCKET, **hidden)
            client.put_object(Bucket=BUCKET, Key="empty/notes.txt", Body=b"nothing here")
        yield address


@pytest.fixture
def s3(endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Point this process and its children at the server, and return the address of the example run."""
    import s3fs

    for name, value in settings_for(endpoint, str(tmp_path_factory.mktemp("aws"))).items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    return f"s3://{BUCKET}/teams/one"
