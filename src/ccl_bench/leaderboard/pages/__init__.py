"""The pages of the leaderboard as HTML, for the server and for the static site alike."""
