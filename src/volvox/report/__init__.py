"""What a run shows of itself: progress bar, metrics, plots, video, pictures of a population."""

from volvox.report import population as population
