"""The leaderboard of published runs; it needs the extra `leaderboard`.

`bundle` is the archive of a run, `store` keeps bundles and the index of them, `publishing` takes them in and
recomputes them. `pages` draws HTML from the store, for the server in `web` and for the files of `site`.
"""
