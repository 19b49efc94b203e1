"""A bucket that holds the example run as two of its ranks recorded it, on an S3 server of this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from commands import recorded_by
from object_storage import bucket_of, s3_server, settings_for, use_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BUCKET = "runs"


@pytest.fixture(scope="session")
def on_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the run on the disk."""
    return recorded_by((0, 2), tmp_path_factory.mktemp("disk") / "one")


@pytest.fixture(scope="session")
def endpoint(on_disk: Path) -> Iterator[str]:
    """Return the address of a server that speaks S3 and holds one bucket."""
    with s3_server() as address:
        with bucket_of(address, BUCKET) as client:
            for path in on_disk.iterdir():
                client.upload_file(str(path), BUCKET, f"teams/one/{path.name}")
            hidden = {"Key": "teams/one/.hidden/trace.json", "Body": b'{"traceEvents": []}'}
            client.put_object(Bucket=BUCKET, **hidden)
            client.put_object(Bucket=BUCKET, Key="empty/notes.txt", Body=b"nothing here")
        yield address


@pytest.fixture
def s3(endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Point this process and its children at the server, and return the address of the run."""
    use_server(monkeypatch, settings_for(endpoint, str(tmp_path_factory.mktemp("aws"))))
    return f"s3://{BUCKET}/teams/one"
