import pytest

from volvox.evolution import Cutoff, parse_cutoff


def test_forms():
    assert parse_cutoff(5_000) == parse_cutoff("5000") == Cutoff(5_000)
    assert parse_cutoff("adaptive:400,0.1,1.5,5000") == Cutoff(400, 0.1, 1.5, 5_000)


@pytest.mark.parametrize(
    "bad", [0, -3, "no", "adaptive:", "adaptive:400,0.1,1.5", "adaptive:400,2,1.5,5000", "adaptive:400,0.1,1,5000",
            "adaptive:400,0.1,1.5,300", "adaptive:0,0.1,1.5,300", "adaptive:a,b,c,d", 4.5, Cutoff(400, 0.1),
            Cutoff(400.0, 0.1, 1.5, 5_000), Cutoff("400")],
)  # fmt: skip
def test_bad_forms_name_the_value(bad):
    with pytest.raises(ValueError, match="max_episode_steps=") as error:
        parse_cutoff(bad)
    assert repr(bad) in str(error.value)
    assert "adaptive:start,fraction,ratio,max" in str(error.value)


def test_growth():
    rule = parse_cutoff("adaptive:400,0.1,1.5,1000")
    assert rule.grown(400, 0.1) == 400  # not more than the fraction
    assert rule.grown(400, 0.11) == 600
    assert rule.grown(900, 0.5) == 1_000
    assert rule.grown(1_000, 1.0) == 1_000
    assert parse_cutoff(400).grown(400, 1.0) == 400
