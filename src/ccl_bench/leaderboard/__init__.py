"""The leaderboard of published runs; it needs the extra `leaderboard`.

`bundle` builds and checks the archive of a run, `store` holds bundles and their index, `publishing` receives
and recomputes them. `pages` renders HTML from the store, for the server in `web` and the files of `site`.
"""
