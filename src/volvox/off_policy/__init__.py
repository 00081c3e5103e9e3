"""Learning from a replay, on pipelined pools of environments."""

from volvox.off_policy.presets import reference as reference
from volvox.off_policy.td3 import TD3State as TD3State
from volvox.off_policy.td3 import policy_of as policy_of
from volvox.off_policy.td3 import table_of as table_of
from volvox.off_policy.td3 import td3 as td3
