"""Evolution on pipelined pools of environments."""

from volvox.evolution.cutoff import Cutoff as Cutoff
from volvox.evolution.cutoff import cutoff as cutoff
from volvox.evolution.evolve import evolve as evolve
from volvox.evolution.ga import ga as ga
from volvox.evolution.ga import random_search as random_search
from volvox.evolution.presets import GAPreset as GAPreset
from volvox.evolution.presets import desktop as desktop
from volvox.evolution.presets import paper as paper
from volvox.evolution.presets import quick as quick
from volvox.evolution.strategy import Round as Round
from volvox.evolution.strategy import Strategy as Strategy
from volvox.evolution.strategy import compiled_rounds as compiled_rounds
