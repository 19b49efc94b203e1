"""A bucket that holds the example run, on an S3 server of this process."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

import pytest
from commands import EXAMPLE

if TYPE_CHECKING:
    from collections.abc import Iterator

needs_s3 = "pip install 'ccl-bench[remote]' 'moto[server]'"
pytest.importorskip("s3fs", reason=f"s3fs is not installed: {needs_s3}")
pytest.importorskip("moto.server", reason=f"moto is not installed: {needs_s3}")

BUCKET = "runs"


@pytest.fixture(scope="session")
def endpoint() -> Iterator[str]:
    """Return the address of a server that speaks S3 and holds one bucket."""
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    address = f"http://{host}:{port}"
    client = boto3.client(
        "s3",
        endpoint_url=address,
        region_name="us-east-1",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
    )
    with contextlib.closing(client):
        client.create_bucket(Bucket=BUCKET)
        for path in EXAMPLE.iterdir():
            client.upload_file(str(path), BUCKET, f"teams/one/{path.name}")
        client.put_object(Bucket=BUCKET, Key="teams/one/.hidden/trace.json", Body=b'{"traceEvents": []}')
        client.put_object(Bucket=BUCKET, Key="empty/notes.txt", Body=b"nothing here")
    yield address
    server.stop()


@pytest.fixture
def s3(endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Point this process and its children at the server, and return the address of the example run."""
    import s3fs

    settings = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": str(tmp_path_factory.mktemp("aws") / "config"),
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_MAX_ATTEMPTS": "1",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    return f"s3://{BUCKET}/teams/one"
