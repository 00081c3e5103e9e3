"""Reports of runs: learning curves, statistics, videos, HTML files, and pictures of populations."""

from volvox.report.files import read_log, read_metrics
from volvox.report.html import html_report
from volvox.report.metrics import interquartile_mean, probability_of_improvement
from volvox.report.plots import cloud, learning_curve, lineage
from volvox.report.video import filmstrip, record_video

__all__ = [
    "cloud",
    "filmstrip",
    "html_report",
    "interquartile_mean",
    "learning_curve",
    "lineage",
    "probability_of_improvement",
    "read_log",
    "read_metrics",
    "record_video",
]
