"""What every route takes from a request: the store, and where pages are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.leaderboard.pages.links import Links

if TYPE_CHECKING:
    from fastapi import Request

    from ccl_bench.leaderboard.store import Store


def links(request: Request) -> Links:
    """Return the addresses of this server, behind whatever prefix it stands."""
    return Links(request.scope.get("root_path", "").rstrip("/"))


def store_of(request: Request) -> Store:
    """Return the store, with what was put into its folder since the last request."""
    store: Store = request.app.state.store
    store.catch_up_if_changed()
    return store
