"""Reports of runs: learning curves, an HTML file, videos, pictures of a population, and readers of their files.

    rows = vx.report.read_metrics("runs/pong/metrics.jsonl")
    vx.report.html_report("pong.html", rows, {"algorithm": dict(algorithm.config)}, title="Pong")

Several runs are compared by `volvox.compare`, which rests on the statistics here.
"""

from volvox.report.comparison import Comparison, compare
from volvox.report.html import html_report
from volvox.report.plots import learning_curve
from volvox.report.population import cloud, descent, maze_walls
from volvox.report.rows import Row, read_log, read_metrics
from volvox.report.runs import SCORES
from volvox.report.statistics import Estimate, interquartile_mean, probability_of_improvement
from volvox.report.video import Recording, record_video

__all__ = ["SCORES", "Comparison", "Estimate", "Recording", "Row", "cloud", "compare", "descent", "html_report"]
__all__ += ["interquartile_mean", "learning_curve", "maze_walls", "probability_of_improvement", "read_log"]
__all__ += ["read_metrics", "record_video"]
