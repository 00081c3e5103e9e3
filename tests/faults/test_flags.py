"""Words of the command line that mean nothing are refused by every script."""

import sys

import pytest

SCRIPTS = ["atari_a3c", "atari_es", "atari_ga", "atari_novelty", "atari_ppo", "cartpole_primal_dual", "mujoco_a3c"]
SCRIPTS += ["mujoco_ppo", "mujoco_td3"]
WITHOUT_PRESETS = ["group_sparse", "lag_a3c", "maze_novelty", "sparse_mdp_regret", "study"]


@pytest.mark.parametrize("script_name", SCRIPTS)
def test_a_typo_in_a_preset_trains_nothing(script, script_name, capsys):
    """`papr` for `paper`, as the first word, behind --preset, and behind another preset."""
    module = script(script_name)
    first = next(iter(module.PRESETS))
    read = sys.modules["launch"].read
    for words in (["papr"], ["--preset", "papr"], ["--preset=papr"], [first, "--preset", "papr"], [first, "papr"]):
        with pytest.raises(SystemExit) as refusal:
            read(module.PRESETS, module.__doc__, words)
        assert refusal.value.code == 2
        assert capsys.readouterr().err


@pytest.mark.parametrize("words", [["quik"], [], ["--seed", "1"]], ids=str)
def test_another_first_word_is_answered_in_one_line(script, words, capsys):
    module = script("atari_ga")
    with pytest.raises(SystemExit) as refusal:
        sys.modules["launch"].read(module.PRESETS, module.__doc__, words)
    assert refusal.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "the first word is one of quick, desktop, random-search, paper, random-search-paper, flags follow" in line
    assert ("did you mean 'quick'?" in line) == (words == ["quik"])


@pytest.mark.parametrize("script_name", WITHOUT_PRESETS)
def test_scripts_without_presets_refuse_one(script, script_name, monkeypatch, capsys):
    module = script(script_name)
    for words in (["papr"], ["--preset", "papr"]):
        monkeypatch.setattr(sys, "argv", [script_name, *words])
        monkeypatch.setattr("os.nice", lambda increment: 0)
        with pytest.raises(SystemExit) as refusal:
            module.main()
        assert refusal.value.code == 2
        assert capsys.readouterr().err


@pytest.mark.parametrize("script_name", SCRIPTS)
def test_an_empty_run_directory_is_refused(script, script_name):
    module = script(script_name)
    if script_name == "cartpole_primal_dual":
        pytest.skip("it has no flags of a run; its main function refuses the empty name")
    with pytest.raises(ValueError, match="is empty: name a directory"):
        sys.modules["launch"].read(module.PRESETS, module.__doc__, [next(iter(module.PRESETS)), "--run-dir", ""])


@pytest.mark.parametrize("flag", ["--minutes", "--checkpoint-every", "--score-episodes"])
@pytest.mark.parametrize("value", ["-1", "nan", "inf", "1e400"])
def test_a_flag_without_a_meaning_is_refused(script, capsys, flag, value):
    module = script("atari_ga")
    with pytest.raises((SystemExit, ValueError)) as refusal:
        sys.modules["launch"].read(module.PRESETS, module.__doc__, ["quick", flag, value])
    if isinstance(refusal.value, SystemExit):
        assert refusal.value.code == 2
    else:
        assert str(refusal.value).startswith(f"{flag.strip('-').replace('-', '_')}=")
