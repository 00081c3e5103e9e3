import os
import subprocess
import sys
from pathlib import Path

import jax

from volvox import provenance


def test_versions():
    assert provenance.versions().keys() == {"python", "volvox", "jax", "envpool", "optax"}
    assert provenance.versions()["jax"] == jax.__version__


def test_where_a_run_comes_from():
    found = provenance.provenance()
    assert found["hardware"]["cpus"] == len(os.sched_getaffinity(0))
    assert found["hardware"]["devices"] == [jax.devices()[0].device_kind] * jax.device_count()
    assert found["command"].split()[0] == Path(sys.orig_argv[0]).name


def test_words_that_are_no_text_can_be_written(monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["python", "--run-dir", os.fsdecode(b"runs/\xff")])
    assert provenance.provenance()["command"].encode() == b"python --run-dir 'runs/?'"


def test_the_revision_is_the_checkout_s():
    here = Path(provenance.__file__).parent
    head = subprocess.run(["git", "-C", here, "rev-parse", "HEAD"], capture_output=True, text=True)
    if head.returncode == 0:
        assert provenance.revision().removesuffix("-dirty") == head.stdout[:12]
    else:
        assert provenance.revision() is None


def test_a_revision_says_whether_files_were_changed(tmp_path, monkeypatch):
    own = tmp_path / "provenance.py"
    own.write_text("")
    git = ["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "a"]):
        subprocess.run([*git, *words], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True).stdout
    monkeypatch.setattr(provenance, "__file__", str(own))
    assert provenance.revision() == head[:12]
    own.write_text("changed")
    assert provenance.revision() == f"{head[:12]}-dirty"


def test_a_copy_in_somebody_else_s_checkout_has_no_revision(tmp_path, monkeypatch):
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    (tmp_path / "provenance.py").write_text("")
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "provenance.py"))
    assert provenance.revision() is None
