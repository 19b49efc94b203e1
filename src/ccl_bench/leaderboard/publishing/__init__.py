"""Publishing: how a run gets onto a leaderboard, and what happens to it there.

`client` sends it, `ingest` takes it in, `publications` registers whose it is and what it supersedes, and
`moderation` withdraws and approves. A `worker` takes jobs from the `queue` and recomputes runs (`recompute`),
each in a process with limits (`sandbox`).
"""
