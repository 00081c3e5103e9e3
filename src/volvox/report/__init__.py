"""What a run shows of itself: progress bar, metrics, plots, video."""
