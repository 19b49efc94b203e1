"""Publishing of runs on a leaderboard, and their life there.

`client` sends a bundle, `ingest` accepts it, `publications` registers its owner and the runs that it
supersedes, and `moderation` withdraws and approves. A `worker` takes jobs from the `queue` and recomputes
runs (`recompute`), each in a process with limits (`sandbox`). `audit` and `backup` serve operators.
"""
