"""What a run shows of itself: the learning curve, videos, pictures of a population, and its files read back."""

from volvox.report.plots import learning_curve
from volvox.report.population import cloud, descent, maze_walls
from volvox.report.rows import Row, read_log, read_metrics
from volvox.report.video import Recording, record_video

__all__ = ["Recording", "Row", "cloud", "descent", "learning_curve", "maze_walls", "read_log", "read_metrics"]
__all__ += ["record_video"]
