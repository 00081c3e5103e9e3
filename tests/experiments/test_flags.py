"""Flags come from the fields of settings, with the documentation of their class, and from nowhere else."""

import dataclasses
import inspect
import re

import pytest

import volvox as vx

USED = [
    ("atari_ga", "desktop", vx.GA),
    ("atari_ga", "random-search", vx.GA),
    ("atari_es", "desktop", vx.ES),
    ("atari_novelty", "nsr-es", vx.ES),
    ("atari_novelty", "nsra-es", vx.Novelty),
    ("atari_novelty", "ga", vx.GA),
    ("atari_novelty", "ga", vx.rollout.Trajectory),
    ("atari_a3c", "modern", vx.A3C),
    ("mujoco_a3c", "mujoco", vx.A3C),
    ("mujoco_td3", "reference", vx.TD3),
    ("atari_ppo", "cleanrl", vx.PPO),
    ("mujoco_ppo", "cleanrl", vx.PPO),
]
NESTED = ("objective", "behavior")
"""Fields that hold settings themselves, whose fields are flags."""
SCRIPTS = sorted({script for script, _, _ in USED})


def documented(settings):
    """Field -> what the Attributes section of the class says of it, in one line."""
    section = inspect.getdoc(settings).split("Attributes:")[1].split("\n\n")[0]
    found, name = {}, None
    for line in section.splitlines()[1:]:
        begins = re.match(r"  (\w+): (.*)", line)
        if begins:
            name = begins[1]
            found[name] = begins[2]
        else:
            found[name] += " " + line.strip()
    return found


@pytest.mark.parametrize(("script", "preset", "settings"), USED)
def test_every_field_is_a_flag_with_its_documentation(script, preset, settings, load, help_of):
    flags, documentation = help_of(load(script), preset), documented(settings)
    fields = [field.name for field in dataclasses.fields(settings) if field.name not in NESTED]
    assert fields
    for name in fields:
        shown = flags["--" + name.replace("_", "-")]
        # Words, for the page breaks lines where it must, and may cut a long word.
        assert "".join(documentation[name].split()) in "".join(shown.split())


def test_a_new_field_is_a_flag_though_no_script_names_it(load, read, help_of):
    module = load("mujoco_td3")
    longer = dataclasses.make_dataclass(
        "Longer",
        [("warmup", int, dataclasses.field(default=7))],
        bases=(vx.TD3,),
        frozen=True,
        kw_only=True,
    )
    longer.__doc__ = """TD3 with one more setting.

    Attributes:
      warmup: updates before the first, in thousands.
    """
    about, settings = module.PRESETS["reference"]
    module.PRESETS["reference"] = (about, dataclasses.replace(settings, learner=longer()))
    flags = help_of(module, "reference")
    assert flags["--warmup"] == "--warmup INT updates before the first, in thousands. (default: 7)"
    given = read(module, ["reference", "--warmup", "9", "--n-step", "3"]).learner
    assert (type(given), given.warmup, given.n_step) == (longer, 9, 3)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_preset_is_what_it_says_and_flags_change_it(script, load, read):
    module = load(script)
    for preset, (_, settings) in module.PRESETS.items():
        assert read(module, [preset]) == settings
        changed = read(module, [preset, "--minutes", "7", "--groups", "4"])
        run, env = dataclasses.replace(settings.run, minutes=7), dataclasses.replace(settings.env, groups=4)
        assert changed == dataclasses.replace(settings, run=run, env=env)


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("words", [["fast"], [], ["--seed", "1"]], ids=" ".join)
def test_another_preset_or_none_is_refused_naming_the_choices(script, words, load, read, capsys):
    module = load(script)
    with pytest.raises(SystemExit) as refusal:
        read(module, words)
    assert refusal.value.code == 2
    printed = capsys.readouterr().err
    assert all(preset in printed for preset in module.PRESETS)


@pytest.mark.parametrize("script", SCRIPTS)
def test_what_the_settings_refuse_is_one_line(script, load, read):
    module = load(script)
    preset = next(iter(module.PRESETS))
    with pytest.raises(ValueError, match=r"^checkpoint_every=0: give a positive number of rows\.$"):
        read(module, [preset, "--checkpoint-every", "0"])


@pytest.mark.parametrize("flag", ["generations", "frames"])
def test_a_budget_of_nothing_is_refused(flag, load, read):
    with pytest.raises(ValueError, match=rf"^{flag}=0: give a positive number of {flag} in all\.$"):
        read(load("atari_ga"), ["quick", f"--{flag}", "0"])


@pytest.mark.parametrize("script", ["atari_a3c", "atari_ppo", "mujoco_a3c", "mujoco_ppo", "mujoco_td3"])
def test_learners_are_evaluated_as_flags_say(script, load, read):
    module = load(script)
    given = ["--evaluate-every", "5000", "--num-evaluation-episodes", "3"]
    settings = read(module, [next(iter(module.PRESETS)), *given])
    assert vars(settings.evaluation) == {"evaluate_every": 5_000, "num_evaluation_episodes": 3}


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_has_at_most_sixty_lines(script, load):
    assert len(inspect.getsource(load(script)).splitlines()) <= 60


def test_workers_are_settings_of_ray():
    import flags

    assert flags.Population()._workers() is None
    workers = flags.Population(workers="3", ray_address="10.0.0.1:6379")._workers()
    assert (workers.num_actors, workers.address) == (3, "10.0.0.1:6379")
    assert flags.Population(workers="nodes")._workers().num_actors == "nodes"
    with pytest.raises(ValueError, match="give --workers nodes as well"):
        flags.Population(ray_address="10.0.0.1:6379")
