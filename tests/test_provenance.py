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


def test_the_revision_is_the_checkout_s():
    here = Path(provenance.__file__).parent
    head = subprocess.run(["git", "-C", here, "rev-parse", "HEAD"], capture_output=True, text=True)
    if head.returncode == 0:
        assert head.stdout.startswith(provenance.revision().removesuffix("-dirty"))
    else:
        assert provenance.revision() is None


def test_a_copy_in_somebody_else_s_checkout_has_no_revision(tmp_path, monkeypatch):
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    (tmp_path / "provenance.py").write_text("")
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "provenance.py"))
    assert provenance.revision() is None
