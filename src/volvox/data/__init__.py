"""Data of learners: segments, replay, returns and statistics of episodes."""
