"""The one loop, and what runs on it."""

from volvox.rollout.behavior import Behavior as Behavior
from volvox.rollout.behavior import last as last
from volvox.rollout.behavior import trajectory as trajectory
from volvox.rollout.evaluate import Evaluator as Evaluator
from volvox.rollout.evaluate import Figures as Figures
from volvox.rollout.evaluate import SlotMemory as SlotMemory
from volvox.rollout.evaluate import evaluator as evaluator
from volvox.rollout.pipeline import LoopState as LoopState
from volvox.rollout.pipeline import Stages as Stages
from volvox.rollout.pipeline import driven as driven
from volvox.rollout.pipeline import traced as traced
from volvox.rollout.play import Score as Score
from volvox.rollout.play import play as play
from volvox.rollout.play import play_randomly as play_randomly
from volvox.rollout.play import reference_batch as reference_batch
