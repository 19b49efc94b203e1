"""The leaderboard as files that any web host serves and that open from a disk."""

from ccl_bench.leaderboard.site.writing import Written, write_site

__all__ = ["Written", "write_site"]
