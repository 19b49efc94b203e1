"""Asks the application in this process, as a browser would over the network."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx

if TYPE_CHECKING:
    from fastapi import FastAPI


@dataclass(frozen=True)
class Client:
    """Whoever asks."""

    app: FastAPI
    root_path: str = ""

    def get(self, address: str) -> httpx.Response:
        """Return the answer; what breaks inside is a 500, as it is over the network.

        A thread of its own, since the one of the tests may have an event loop already.
        """
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, self._got(address)).result()

    async def _got(self, address: str) -> httpx.Response:
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False, root_path=self.root_path)
        async with httpx.AsyncClient(transport=transport, base_url="http://leaderboard") as client:
            return await client.get(address)
