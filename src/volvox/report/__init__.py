"""Reports of runs: learning curves, comparisons with statistics, videos, HTML files, and pictures of populations."""

from volvox.report.comparison import Comparison, compare
from volvox.report.files import read_config, read_log, read_metrics
from volvox.report.html import html_report
from volvox.report.plots import learning_curve
from volvox.report.population import cloud, maze_walls
from volvox.report.statistics import interquartile_mean, probability_of_improvement
from volvox.report.video import record_video

__all__ = [
    "Comparison",
    "cloud",
    "compare",
    "html_report",
    "interquartile_mean",
    "learning_curve",
    "maze_walls",
    "probability_of_improvement",
    "read_config",
    "read_log",
    "read_metrics",
    "record_video",
]
