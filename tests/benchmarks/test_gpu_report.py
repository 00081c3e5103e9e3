"""The report of the GPU's benchmark, of whole and of broken results."""

import json
from pathlib import Path

import gpu_report
import pytest

RESULT = Path(__file__).parents[2] / "benchmarks" / "results" / "gpu_h100.json"


@pytest.fixture(name="result")
def _result():
    return json.loads(RESULT.read_text())


def test_the_committed_result_becomes_tables(result):
    lines = gpu_report.report(result, "gpu_h100.json")
    rate = gpu_report.number(result["parts"]["ppo"]["steps_per_s"])
    assert any(line.startswith("| PPO") and rate in line for line in lines)


@pytest.mark.parametrize("missing", ["rollout_1024", "forward", "kernels", "ppo", "td3", "a3c"])
def test_failed_and_absent_parts_are_left_out(missing, result):
    whole = gpu_report.report(result, "x.json")
    result["parts"][missing] = {"exit_code": 1, "took_s": 1.0, "output": ["error"]}
    assert missing in gpu_report.report(result, "x.json")[1]
    del result["parts"][missing]
    assert len(gpu_report.report(result, "x.json")) < len(whole)
    gpu_report.report(result | {"parts": {}}, "x.json")


def test_numbers_have_three_significant_digits():
    assert [gpu_report.number(x) for x in (20_862.4, 0.8521, 11.48, None)] == ["20,900", "0.852", "11.5", ""]
