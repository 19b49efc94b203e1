"""Commands that publish: `runs` sends and withdraws them, `leaderboard` serves, `trust` verifies."""
