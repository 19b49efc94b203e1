"""A server that speaks S3, in this process, on a free port."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

NEEDED = "pip install 'ccl-bench[remote]' 'moto[s3]' flask flask-cors"
KEY = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """Give the address of a server without buckets; skip where it or its client is not installed."""
    pytest.importorskip("s3fs", reason=f"s3fs is not installed: {NEEDED}")
    moto = pytest.importorskip("moto.server", reason=f"moto is not installed: {NEEDED}")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@contextlib.contextmanager
def bucket_of(address: str, name: str) -> Iterator[Any]:
    """Give a client of the server, with a bucket that is there."""
    import boto3

    client = boto3.client("s3", endpoint_url=address, region_name="us-east-1", **KEY)
    with contextlib.closing(client):
        client.create_bucket(Bucket=name)
        yield client


def use_server(monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]) -> None:
    """Point this process and its children at the server of these settings, and forget any other."""
    import s3fs

    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()


def settings_for(address: str, place: str) -> dict[str, str]:
    """Return the environment that leads to this server and no other; `place` is an empty folder."""
    return {
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": KEY["aws_access_key_id"],
        "AWS_SECRET_ACCESS_KEY": KEY["aws_secret_access_key"],
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": f"{place}/config",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_MAX_ATTEMPTS": "1",
    }
