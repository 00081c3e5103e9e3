"""The one loop, and what runs on it."""

from volvox.loop.behaviors import Behavior as Behavior
from volvox.loop.behaviors import last as last
from volvox.loop.behaviors import trajectory as trajectory
from volvox.loop.evaluator import Evaluator as Evaluator
from volvox.loop.evaluator import Figures as Figures
from volvox.loop.evaluator import SlotMemory as SlotMemory
from volvox.loop.evaluator import evaluator as evaluator
from volvox.loop.pipeline import LoopState as LoopState
from volvox.loop.pipeline import Stages as Stages
from volvox.loop.pipeline import driven as driven
from volvox.loop.pipeline import traced as traced
from volvox.loop.scoring import Score as Score
from volvox.loop.scoring import play as play
from volvox.loop.scoring import play_randomly as play_randomly
from volvox.loop.scoring import reference_batch as reference_batch
