import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import probes
import pytest
from flax import linen as nn

import volvox as vx
from volvox import _config
from volvox._parts import what_load_needs
from volvox.report import rows

GOLDEN = Path(__file__).parent / "golden" / "format_3"
RESULTS = Path(__file__).parent.parent / "experiments" / "results"
QUICK = ("atari_a3c/pong", "low_rank/ga_seaquest/full", "mujoco_a3c/halfcheetah")
QUICK += ("ppo/halfcheetah-v4-1-million-timesteps/seed-1",)
COMMITTED = sorted(path.parent for path in RESULTS.rglob("config.json"))
# Those with a lineage are loaded, and played, by tests/experiments/test_score_lineages.py.
COMMITTED = [
    path for path in COMMITTED if str(path.relative_to(RESULTS)) in QUICK or not (path / "elite.json").exists()
]


def corridor():
    return probes.corridor(length=5, num_envs=8, groups=2)


def ga(network=None, env=None, **settings):
    env = env or corridor()
    sizes = {"population_size": 12, "num_parents": 3, "num_elite_candidates": 2, "num_validation_episodes": 2}
    strategy = vx.GA(**{**sizes, **settings})
    return vx.evolve(strategy, network or vx.networks.MLP(2, (4,)), env)


def td3(optimizer=optax.adam, learning_rate=3e-4):
    env = probes.target(size=2, num_envs=2)
    networks = vx.networks.ActorAndCritic(vx.networks.MLP(2, (8,)), vx.networks.QNetwork((8,)))
    settings = vx.TD3(
        optimizer=optimizer,
        learning_rate=learning_rate,
        batch_size=8,
        random_timesteps=16,
        replay_size=200,
        timesteps_per_iteration=40,
    )
    return vx.learn(settings, networks, env)


def a3c():
    env = vx.envs.cartpole(num_envs=4, groups=2)
    network = vx.networks.ActorCritic(2, vx.networks.MLP(8, (8,)))
    return vx.learn(vx.A3C(segment_length=4, updates_per_iteration=4), network, env, evaluate_every=100)


def trained(algorithm, run_dir, steps=2, **options):
    try:
        return vx.train(algorithm, steps=steps, run_dir=run_dir, progress=False, loggers=(), **options)
    finally:
        algorithm.close()


def lasting(metrics):
    return [{k: v for k, v in row.items() if "second" not in k and "share" not in k} for row in metrics]


@pytest.mark.slow_except("ga")
@pytest.mark.parametrize("make", [ga, td3, a3c], ids=lambda make: make.__name__)
def test_a_loaded_run_is_the_run(make, tmp_path):
    run = trained(make(), tmp_path / "a")
    loaded = vx.load(tmp_path / "a")
    assert loaded.metrics == rows.read_metrics(tmp_path / "a" / "metrics.jsonl")
    chex.assert_trees_all_equal(loaded.variables(), run.variables())
    chex.assert_trees_all_equal(loaded.variables("last"), run.variables("last"))
    assert loaded.algorithm.config == run.algorithm.config
    mine, saved = (each.evaluate(num_episodes=4) for each in (run, loaded))
    chex.assert_trees_all_equal(mine.returns, saved.returns)
    assert loaded.command() == shlex.join([Path(sys.orig_argv[0]).name, *sys.orig_argv[1:]])
    assert loaded.interrupted is None
    assert repr(loaded).endswith(f", run_dir='{tmp_path}/a')")


class Unmarked(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(x)


@pytest.mark.slow_except("unmarked")
@pytest.mark.parametrize(
    ("network", "env", "needed"),
    [
        (vx.networks.MLP(2), corridor(), None),
        (Unmarked(), corridor(), None),  # flax modules need no mark
        (vx.networks.MLP(2, activation=lambda x: x), corridor(), r"network= \(algorithm\.network.*<lambda>"),
        (vx.networks.MLP(2), corridor()._replace(config={"name": "mine"}), r"env= \(.*volvox\.recorded"),
    ],
    ids=["nothing", "flax", "lambda", "unmarked"],
)
def test_train_says_what_load_will_need(network, env, needed, tmp_path, capsys):
    algorithm = ga(network, env)
    vx.train(algorithm, steps=1, run_dir=tmp_path / "a", loggers=())
    algorithm.close()
    told = [line for line in capsys.readouterr().err.splitlines() if "vx.load will need" in line]
    assert len(told) == (needed is not None)
    if needed is not None:
        assert re.search(f"a: in another process vx.load will need ({needed})", told[0])
        argument = told[0].partition("need ")[2].partition("=")[0]
        with pytest.raises(ValueError, match=rf"Give it: vx\.load\(run_dir, {argument}=\.\.\.\)"):
            vx.load(tmp_path / "a")
        parts = {"network": network, "env": env}
        assert vx.load(tmp_path / "a", **{argument: parts[argument]}).metrics


def test_a_network_of_a_script_is_said_to_be_needed():
    config = ga().config
    assert what_load_needs(config) is None
    script = "is defined in the script or notebook that runs"
    both = dict(config, network={"type": "__main__:Net"}, env={"made_by": {"call": "__main__:env"}})
    assert what_load_needs(both) == f"env= (env {script}) and network= (Net {script})"
    assert what_load_needs(both | {"strategy": {"type": "__main__:Own"}}) == f"algorithm= (Own {script})"
    told = "env= (algorithm.env is not described) and network= (algorithm.network is not described)"
    assert what_load_needs({"algorithm": "learn"}) == told
    assert what_load_needs({"algorithm": "mine"}) == "algorithm= (neither vx.evolve nor vx.learn made it)"


def test_the_command_that_makes_a_run_does_not_resume_it(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["python", "atari_ga.py", "quick", "--run-dir", "runs/a b", "--resume"])
    trained(ga(), tmp_path / "a")
    assert vx.load(tmp_path / "a").command() == "python atari_ga.py quick --run-dir 'runs/a b'"


def test_a_loaded_run_is_exported_and_reported(tmp_path):
    trained(ga(), tmp_path / "a")
    run = vx.load(tmp_path / "a")
    exported = vx.load(run.export(tmp_path / "policy.stablehlo"))
    observation = np.linspace(0, 1, 7, dtype=np.float32)[:, None]
    chex.assert_trees_all_equal(exported(observation), run.actor()(observation))
    one, other = exported(observation[0]), run.actor()(observation[0])
    assert type(one) is type(other) is np.int32
    with pytest.raises(ValueError, match="needs no parts, since it holds the whole policy: leave out network, env"):
        vx.load(tmp_path / "policy.stablehlo", network=vx.networks.MLP(2, (4,)), env=run.algorithm.env)
    shutil.copytree(tmp_path / "a", tmp_path / "a.onnx")
    assert len(vx.load(tmp_path / "a.onnx").metrics) == len(run.metrics)
    with pytest.raises(ValueError, match=r"a/config\.json is a file; load takes a run dir.*; did you mean .*/a\?"):
        vx.load(tmp_path / "a" / "config.json")
    assert "corridor" in run.report().read_text()


@pytest.mark.slow
def test_a_loaded_run_goes_on_exactly(tmp_path):
    whole = trained(ga(), tmp_path / "whole", steps=3)
    trained(ga(), tmp_path / "parts", steps=1)
    loaded = vx.load(tmp_path / "parts")
    run = loaded.resume(steps=3, progress=False, loggers=())
    loaded.algorithm.close()
    assert [row["generation"] for row in run.metrics] == [1, 2, 3]
    names = ("training_mean", "validation_mean", "frames")
    once, twice = ([[row[name] for name in names] for row in each.metrics] for each in (whole, run))
    assert twice == once
    chex.assert_trees_all_equal(run.variables(), whole.variables())


def test_another_process_in_another_folder_loads_it(tmp_path):
    run = trained(ga(), tmp_path / "a")
    (tmp_path / "elsewhere").mkdir()
    program = """
        import sys, volvox as vx
        act = vx.load(sys.argv[1]).actor()
        print([int(act([x])) for x in (0.0, 0.2, 0.4, 0.6, 0.8)])
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "a")]
    done = subprocess.run(command, cwd=tmp_path / "elsewhere", capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    act = run.actor()
    assert json.loads(done.stdout.splitlines()[-1]) == [int(act(np.float32([x]))) for x in (0.0, 0.2, 0.4, 0.6, 0.8)]


def test_the_elite_s_lineage_is_enough_to_play(tmp_path):
    run = trained(ga(), tmp_path / "a")
    shutil.rmtree(tmp_path / "a" / "checkpoints")
    loaded = vx.load(tmp_path / "a")
    assert loaded.state is None
    chex.assert_trees_all_equal(loaded.variables(), run.variables())
    (tmp_path / "a" / "elite.json").unlink()
    with pytest.raises(ValueError, match="no checkpoint and no elite"):
        vx.load(tmp_path / "a").evaluate()


class Mine(nn.Module):
    """A module that `config.json` can name but nobody else can import; `sign` is no field, so no setting."""

    sign = 1.0

    @nn.compact
    def __call__(self, x):
        return self.sign * nn.Dense(2)(x)


@pytest.mark.slow
def test_a_network_that_cannot_be_imported_is_given(tmp_path):
    class Local(Mine):
        pass

    run = trained(ga(Local()), tmp_path / "a")
    with pytest.raises(ValueError, match=r"config\.json: algorithm\.network: .*Local.*network="):
        vx.load(tmp_path / "a")
    loaded = vx.load(tmp_path / "a", network=Local())
    chex.assert_trees_all_equal(loaded.variables(), run.variables())
    with pytest.raises(ValueError, match=r"algorithm\.network\.hidden"):
        vx.load(tmp_path / "a", network=vx.networks.MLP(2, (4,)))


def test_a_network_answers_in_full_precision():
    """On GPUs, and on TPUs, products of matrices have less by default, and other processors other answers."""
    seen, spec = [], probes.target(size=2).spec
    policy = vx.networks.genotype(vx.networks.MLP(2, hidden=()), spec).policy

    def apply(variables, observation, state):
        seen.append(jax.config.jax_default_matmul_precision)
        return policy.apply(variables, observation, state)

    _config.outputs_of(policy._replace(apply=apply), spec)(policy.init(jax.random.key(0)))
    assert seen == ["highest"]
    assert jax.config.jax_default_matmul_precision is None


def test_a_network_that_answers_otherwise_is_refused(tmp_path, monkeypatch):
    trained(ga(Mine()), tmp_path / "a")
    vx.load(tmp_path / "a", network=Mine())
    monkeypatch.setattr(Mine, "sign", -1.0)
    with pytest.raises(ValueError, match="give the network that the run was made with"):
        vx.load(tmp_path / "a", network=Mine())
    with pytest.raises(ValueError, match="give the network that the run was made with"):
        trained(ga(Mine()), tmp_path / "a", steps=3, resume=True)


def test_a_network_of_another_kind_is_named(tmp_path):
    trained(ga(), tmp_path / "a", steps=1)
    actor_critic = vx.networks.ActorCritic(2, vx.networks.MLP(8, (8,)))
    with pytest.raises(ValueError, match=r"was made with MLP, and network= is a ActorCritic: .* do not evolve"):
        vx.load(tmp_path / "a", network=actor_critic)


def test_another_environment_is_refused_but_another_number_of_copies_is_not(tmp_path):
    trained(ga(), tmp_path / "a")
    with pytest.raises(ValueError, match=r"algorithm\.env\.settings\.length: saved 5, now 6"):
        vx.load(tmp_path / "a", env=probes.corridor(length=6, num_envs=8))
    loaded = vx.load(tmp_path / "a", env=probes.corridor(length=5, num_envs=2))
    assert loaded.algorithm.env.num_envs == 2


@pytest.mark.slow
def test_a_changed_optimizer_is_noticed(tmp_path):
    trained(td3(optax.adam(1e-3), None), tmp_path / "a", steps=1)
    with pytest.raises(ValueError, match="algorithm="):
        vx.load(tmp_path / "a")
    vx.load(tmp_path / "a", algorithm=td3(optax.adam(1e-3), None))
    with pytest.raises(ValueError, match=r"settings\.optimizer\.code"):
        trained(td3(optax.adam(1e-4), None), tmp_path / "a", resume=True)


def test_changed_dynamics_are_noticed(tmp_path):
    def still(speed):
        return vx.envs.from_functions(
            lambda key: jnp.zeros(1),
            lambda state, action, key: (state + speed, state[0], False),
            lambda state: state,
            name="still",
            num_envs=4,
            num_actions=2,
            max_episode_steps=3,
        )

    trained(ga(env=still(1.0)), tmp_path / "a", steps=1)
    vx.load(tmp_path / "a", env=still(1.0))
    with pytest.raises(ValueError, match=r"algorithm\.env\.settings\.code"):
        vx.load(tmp_path / "a", env=still(2.0))


def test_a_config_that_is_none_is_named(tmp_path):
    with pytest.raises(ValueError, match="holds no run: there is no "):
        vx.load(tmp_path)
    path = tmp_path / "config.json"
    newer = '{"algorithm": {}, "key": {}, "format": 99}'
    for text, message in [("{", "is not JSON"), ("[]", "not the configuration"), (newer, "format 99")]:
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            vx.load(tmp_path)
    path.write_text(
        json.dumps({"algorithm": {"algorithm": "mine"}, "key": {"impl": "threefry2x32", "data": [0, 0]}, "format": 2})
    )
    with pytest.raises(ValueError, match=r"'mine' was not made by.*algorithm="):
        vx.load(tmp_path)


@pytest.mark.slow_except(*QUICK)
@pytest.mark.parametrize("run_dir", COMMITTED, ids=lambda path: str(path.relative_to(RESULTS)))
def test_committed_runs_load_for_ever(run_dir, tmp_path):
    run = vx.load(run_dir)
    assert run.metrics == rows.read_metrics(run_dir / "metrics.jsonl")
    run.plot(tmp_path / "curve.png")
    assert os.path.getsize(tmp_path / "curve.png") > 1_000
    config = json.loads((run_dir / "config.json").read_text())
    assert run.algorithm.env.config["settings"] == config["algorithm"]["env"]["settings"]
    network = config["algorithm"]["network"]  # two networks, those of TD3, are described without a count
    assert run.algorithm.policy.config.get("num_parameters") == network.get("num_parameters")
    assert "num_parameters" in network or network["type"].endswith(":ActorAndCritic")
    if (run_dir / "elite.json").exists():
        sizes = jax.tree.map(jnp.size, run.variables())
        assert sum(jax.tree.leaves(sizes)) >= run.algorithm.policy.config["num_parameters"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ga", "es", "a3c", "ppo", "td3", "primal-dual"])
def test_checkpoints_of_format_3_load_and_go_on_for_ever(kind, tmp_path):
    """Made by `tests/golden/make_runs.py`, once."""
    shutil.unpack_archive(GOLDEN / f"{kind}.zip", tmp_path)
    run = vx.load(tmp_path)
    observations = np.random.default_rng(0).standard_normal((2, *run.algorithm.env.spec.observation_shape))
    output, _ = run.algorithm.policy.apply(run.variables(), observations.astype(np.float32), ())
    found = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(output)])
    np.testing.assert_allclose(found, json.loads((tmp_path / "outputs.json").read_text()), rtol=1e-3, atol=1e-5)
    run = run.resume(steps=3)
    run.algorithm.close()
    assert [row.get("iteration", row.get("generation")) for row in run.metrics] == [1, 2, 3]
    assert run.metrics[2]["frames"] > run.metrics[1]["frames"]
