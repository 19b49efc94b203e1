"""The pages of the leaderboard as HTML, for the server and for the static site alike.

One module for each page: `table`, `run`, `workload`, `compare`, `reference`. They share `render` (templates,
assets, cells) and `links` (addresses on a server or in files).
"""
