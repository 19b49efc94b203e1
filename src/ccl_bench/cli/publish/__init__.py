"""Commands that publish: `runs` sends, withdraws and approves them, `leaderboard` serves them."""
