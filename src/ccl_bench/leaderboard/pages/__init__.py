"""HTML pages of the leaderboard, for the server and for the static site.

Each page has its module: `table`, `run`, `workload`, `compare`, `reference`. They share `render` (templates,
assets, cells) and `links` (addresses on a server or in files).
"""
